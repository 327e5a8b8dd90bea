/** Reserved memory through time under other settings. */

import type { App } from "../app.js";
import { lineChart, type Line } from "../chart.js";
import { summed } from "../columns.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import type { WhatIfCurve } from "../page.js";
import { part, type Part } from "./section.js";
import { eventText } from "./timeline/change.js";
import { confElement } from "./verdict.js";

/** Lines that can be told apart by their dash and their colour. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 4, 2, 4, 2, 4]];
const INKS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
const MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

export function whatifView(app: App): Part {
  const body = h("div", {}, h("p", { class: "faint" }, "Other settings are being tried…"));
  const made = part("whatif", "What if", "With other settings", body);
  app.source.whatif().then(
    (curves) => show(app, body, curves),
    () => body.replaceChildren(h("p", {}, "The server could not try other settings")),
  );
  return made;
}

function show(app: App, body: HTMLElement, curves: WhatIfCurve[]): void {
  if (curves.length === 0) {
    const command = h("code", {}, "gpuheap whatif FILE");
    body.replaceChildren(h("p", {}, "No other settings were tried for this page; ", command, " tries them"));
    return;
  }
  const recorded = curves.find((curve) => curve.role === "recorded") ?? curves[0];
  const off = new Set<number>();
  const chart = h("div", {});
  const draw = () => chart.replaceChildren(curvesChart(app, curves, off));
  const table = settingsTable(app, curves, recorded, off, draw);
  draw();
  body.replaceChildren(h("p", {}, answer(curves, recorded)), chart, table);
}

function answer(curves: WhatIfCurve[], recorded: WhatIfCurve): string {
  const best = curves.find((curve) => curve.best && curve !== recorded);
  if (!best) return "No setting that was tried is worth changing to";
  const saves = recorded.peak_reserved_bytes - best.peak_reserved_bytes;
  const name = `With ${best.conf === "" ? "stock settings" : format.clean(best.conf, 200)}`;
  if (recorded.oom && !best.oom)
    return `${name} all that was recorded runs; with the recorded settings it runs out of memory`;
  return `${name} the program reserves ${format.bytes(saves)} (${format.share(saves, recorded.peak_reserved_bytes)}) less at the peak`;
}

function curvesChart(app: App, curves: WhatIfCurve[], off: Set<number>): HTMLElement {
  const { model } = app;
  const shown = curves.map((curve, index) => ({ curve, index })).filter(({ index }) => !off.has(index));
  const ticks = [...new Set(shown.flatMap(({ curve }) => [...summed(curve.ticks_delta)]))].sort((a, b) => a - b);
  const lines: Line[] = shown.map(({ curve, index }) => ({
    label: `${MARKS[index % 26]} ${format.settings(curve.conf)}`,
    y: along(curve, ticks),
    ink: curve.best ? "--good" : INKS[index % INKS.length],
    dash: DASHES[index % DASHES.length],
    width: curve.best ? 3 : curve.role === "recorded" ? 2.2 : 1.3,
    stepped: true,
    mark: MARKS[index % 26],
  }));
  const label = shown
    .map(({ curve }) => `${format.settings(curve.conf)}: at most ${format.bytes(curve.peak_reserved_bytes)}`)
    .join("; ");
  const times = model.hasTimes;
  return lineChart({
    label: `Reserved memory through time. ${label}`,
    height: 240,
    x: times ? ticks.map((tick) => model.timeAt(tick) ?? 0) : ticks,
    xText: times ? format.duration : eventText,
    xTexts: times ? format.axisTimes : (splits) => splits.map(format.count),
    lines,
    fromZero: true,
  });
}

/** What the curve holds at each of `ticks`; nothing after it ran out of memory. */
function along(curve: WhatIfCurve, ticks: number[]): (number | null)[] {
  const own = summed(curve.ticks_delta);
  const reserved = summed(curve.reserved_delta);
  let at = -1;
  return ticks.map((tick) => {
    while (at + 1 < own.length && own[at + 1] <= tick) at += 1;
    if (curve.oom && tick > (own[own.length - 1] ?? 0)) return null;
    return at < 0 ? null : reserved[at];
  });
}

function settingsTable(
  app: App,
  curves: WhatIfCurve[],
  recorded: WhatIfCurve,
  off: Set<number>,
  draw: () => void,
): HTMLElement {
  const rows = curves.map((curve, index) => {
    const mark = MARKS[index % 26];
    const toggle = h("input", {
      type: "checkbox",
      checked: true,
      "aria-label": `Show the line ${mark}`,
      onchange: () => {
        if (toggle.checked) off.delete(index);
        else off.add(index);
        draw();
      },
    });
    const line = h("span", { class: "line-mark", "aria-hidden": "true" }, mark);
    line.style.color = `var(${curve.best ? "--good" : INKS[index % INKS.length]})`;
    const change = curve.peak_reserved_bytes - recorded.peak_reserved_bytes;
    const result = curve.oom ? "out of memory" : curve.exact ? "runs" : "runs (estimate)";
    const role = curve.best && curve !== recorded ? "best" : curve.role === "recorded" ? "recorded" : "";
    return h(
      "tr",
      { class: curve.best ? "best" : "" },
      h("td", {}, h("label", { class: "check" }, toggle, line)),
      h("td", {}, confElement(curve.conf, app.announce)),
      h("td", { class: "number" }, format.bytes(curve.peak_reserved_bytes)),
      h("td", { class: "number" }, curve === recorded ? "" : format.change(change)),
      h("td", { class: curve.oom ? "result bad" : "result" }, result),
      h("td", {}, role),
    );
  });
  const head = ["line", "settings", "peak reserved", "change", "result", ""].map((text, index) =>
    text === "" ? h("td", {}) : h("th", { scope: "col", class: index === 2 || index === 3 ? "number" : "" }, text),
  );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Settings" },
    h("table", { class: "settings" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)),
  );
}
