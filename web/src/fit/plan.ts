/** The levers of the plan: what each saves, what it costs, why it is there, and its code. */

import { copyButton, h } from "../dom.js";
import * as format from "../format.js";
import { part, type Part } from "../views/section.js";
import { type FitPage, type PlannedLever, percent } from "./data.js";
import { lines } from "./text.js";

export function planView(page: FitPage, announce: (text: string) => void): Part {
  const { fit } = page;
  if (fit.plan.length === 0) {
    const text = fit.verdict === "fits" ? "Nothing has to change: it fits as it is" : "No change makes it fit";
    return part("plan", "Plan", "Plan", h("p", {}, text));
  }
  const most = Math.max(1, ...fit.plan.map(({ saves_bytes: saves }) => saves));
  const rows = fit.plan.map((lever) => row(lever, most, fit.baseline.step_us, announce));
  const head = ["change", "saves", "step", "why"].map((name, index) =>
    h("th", { scope: "col", class: index === 1 || index === 2 ? "number" : "" }, name),
  );
  const table = h("table", { class: "levers" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
  return part(
    "plan",
    "Plan",
    "Plan",
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Changes of the plan" }, table),
    page.optimality ? h("p", { class: "faint" }, format.clean(page.optimality)) : null,
    h(
      "p",
      { class: "faint" },
      "Savings are of the peak of reserved memory, each against the plan without that change: they need not add up",
    ),
  );
}

function row(lever: PlannedLever, most: number, step: number, announce: (text: string) => void): HTMLElement {
  const saves = lever.saves_bytes;
  const text = saves < 0 ? `\u2212${format.bytes(-saves)}` : format.bytes(saves);
  const bar = h("span", { class: "bar-of", "aria-hidden": "true" }, h("span"));
  (bar.firstChild as HTMLElement).style.setProperty("width", `${Math.max(0, (saves / most) * 100).toFixed(1)}%`);
  const costs = lever.costs_us;
  const time = Math.abs(costs) < 0.5 ? "" : `${costs > 0 ? "+" : "\u2212"}${format.duration(Math.abs(costs))}`;
  const code = lines(lever.code).join("\n");
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      format.clean(lever.what, 300),
      lever.code === ""
        ? null
        : h(
            "details",
            {},
            h("summary", {}, "by hand"),
            h("div", { class: "code" }, h("pre", {}, h("code", {}, code)), copyButton(code, "Copy the code", announce)),
          ),
    ),
    h("td", { class: "number" }, text, bar),
    h("td", { class: "number" }, percent(costs, step), h("div", { class: "faint" }, time)),
    h("td", {}, format.clean(lever.why, 500)),
  );
}
