/** The page: the verdict first, the rest once that can be seen. */

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { App } from "./app.js";
import { begin } from "./begin.js";
import { h } from "./dom.js";
import { readLink } from "./link.js";
import { load } from "./load.js";
import { Model } from "./model.js";
import { sourceOf } from "./source.js";
import { onPrint } from "./print.js";
import { aboutView } from "./views/about.js";
import { findings } from "./views/findings.js";
import { flameView } from "./views/flame.js";
import { header, momentBar } from "./views/header.js";
import { globalKeys, helpDialog } from "./views/help.js";
import { ledgerView } from "./views/ledger.js";
import { mapView } from "./views/map.js";
import { fillNavigation } from "./views/navigation.js";
import type { Part } from "./views/section.js";
import { sitesView } from "./views/sites.js";
import { timelineView } from "./views/timeline.js";
import { verdict } from "./views/verdict.js";
import { whatifView } from "./views/whatif.js";

async function start(main: HTMLElement): Promise<void> {
  const model = new Model(await load(document));
  const live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const announce = (text: string) => {
    live.textContent = text;
  };
  const dialog = helpDialog();
  const help = () => dialog.showModal();
  const { element, navigation } = header(model, help);
  const answer = verdict(model, announce);
  main.replaceChildren(element, answer.element);
  main.before(h("a", { class: "skip", href: "#findings" }, "Skip to the findings"));
  main.after(live, dialog);
  await painted();

  const source = sourceOf(model);
  const link = readLink(location.hash);
  const app = new App(model, source, await firstMoment(model, source, link.tick), live);
  const parts: Part[] = [answer];
  for (const make of [findings, timelineView, flameView, mapView, ledgerView, whatifView, sitesView, aboutView]) {
    parts.push(make(app));
  }
  main.append(...parts.slice(1).map((part) => part.element));
  element.after(h("div", { class: "bar" }, navigation, momentBar(app)));
  fillNavigation(navigation, parts);
  globalKeys(
    app,
    parts.map((part) => part.element),
    help,
  );
  onPrint();
  const follow = () => {
    const { target, tick } = readLink(location.hash);
    if (tick !== null) void app.pick(tick);
    reveal(target);
  };
  addEventListener("hashchange", follow);
  reveal(link.target);
  document.documentElement.setAttribute("data-ready", "");
  // The first zoom needs this order: it is made while nobody waits.
  setTimeout(() => model.memory.byDeath(), 200);
}

async function firstMoment(model: Model, source: ReturnType<typeof sourceOf>, tick: number | null) {
  return source.moment(tick ?? model.firstTick());
}

/** Goes to the part or finding that a link names. */
function reveal(target: string): void {
  const element = target === "" ? null : document.getElementById(target);
  const place = element?.closest<HTMLElement>("article, section");
  if (!place) return;
  place.scrollIntoView();
  place.focus({ preventScroll: true });
}

/** Waits until the browser has shown what is there. */
function painted(): Promise<void> {
  return new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve, 0));
    // A window that is not shown gets no frames.
    setTimeout(resolve, 300);
  });
}

begin(start);
