/** The page of `gpuheap fit --html`: whether a model fits, and what makes it fit. */

import "uplot/dist/uPlot.min.css";
import "../style.css";
import "./fit.css";
import { begin } from "../begin.js";
import { button, h } from "../dom.js";
import * as format from "../format.js";
import { load } from "../load.js";
import { onPrint } from "../print.js";
import { themeChoice } from "../theme.js";
import { fillNavigation } from "../views/navigation.js";
import type { Part } from "../views/section.js";
import { aboutView } from "./about.js";
import { changesView } from "./changes.js";
import { type FitPage, SCHEMA } from "./data.js";
import { frontView } from "./front.js";
import { helpDialog, keys } from "./help.js";
import { phasesView } from "./phases.js";
import { planView } from "./plan.js";
import { Timelines } from "./timeline.js";
import { verdict } from "./verdict.js";

async function start(main: HTMLElement): Promise<void> {
  const page = await load<FitPage>(document, SCHEMA, "plan");
  const { fit } = page;
  const live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const announce = (text: string) => {
    live.textContent = text;
  };
  const dialog = helpDialog();
  const help = () => dialog.showModal();
  const timelines = new Timelines(fit, announce);
  const found: (Part | null)[] = [
    verdict(page),
    planView(page, announce),
    timelines.part(),
    phasesView(fit, timelines),
    frontView(page),
    changesView(page, announce),
    aboutView(page, announce),
  ];
  const parts = found.filter((one): one is Part => one !== null);
  const navigation = h("nav", { class: "sections", "aria-label": "Parts of the page" });
  const title = h(
    "h1",
    {},
    format.clean(format.baseName(fit.source.make) || "A plan", 200),
    h("span", { class: "faint" }, ` in ${format.bytes(fit.budget_bytes)}`),
  );
  const tools = h(
    "div",
    { class: "tools" },
    themeChoice(),
    button("?", help, { "aria-label": "Help: keys", title: "Help: keys" }),
  );
  main.replaceChildren(
    h("header", {}, h("div", { class: "top" }, title, tools)),
    h("div", { class: "bar" }, navigation),
    ...parts.map(({ element }) => element),
  );
  main.before(h("a", { class: "skip", href: "#plan" }, "Skip to the plan"));
  main.after(live, dialog);
  fillNavigation(navigation, parts);
  keys(
    parts.map(({ element }) => element),
    timelines,
    help,
  );
  onPrint();
  reveal();
  addEventListener("hashchange", reveal);
  document.documentElement.setAttribute("data-ready", "");
}

/** Goes to the part that the address names. */
function reveal(): void {
  const place = /^#[\w-]+$/.test(location.hash) ? document.getElementById(location.hash.slice(1)) : null;
  if (!place) return;
  place.scrollIntoView();
  place.focus({ preventScroll: true });
}

begin(start);
