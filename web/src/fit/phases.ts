/** The most of each phase, as it is and as planned. */

import { button, h } from "../dom.js";
import * as format from "../format.js";
import { part, type Part } from "../views/section.js";
import { type Fit, phaseText } from "./data.js";
import type { Timelines, Which } from "./timeline.js";

interface Row {
  step: number;
  phase: string;
  /** By timeline, the most of the phase. */
  most: Partial<Record<Which, { allocated: number; reserved: number; event: number | null }>>;
}

export function phasesView(fit: Fit, timelines: Timelines): Part {
  const rows = rowsOf(fit);
  const planned = rows.some(({ most }) => most.planned);
  const shown: Which[] = planned ? ["baseline", "planned"] : ["baseline"];
  const highest = Math.max(1, ...rows.flatMap(({ most }) => Object.values(most).map(({ allocated }) => allocated)));
  const names = { baseline: "as it is", planned: "planned" };
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "phase"),
    ...shown.flatMap((which) => [
      h("th", { scope: "col", class: "number" }, `allocated${planned ? `, ${names[which]}` : ""}`),
      h("th", { scope: "col", class: "number reserved" }, `reserved${planned ? `, ${names[which]}` : ""}`),
    ]),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, phaseText(row)),
      ...shown.flatMap((which) => {
        const most = row.most[which];
        if (!most) return [h("td", { class: "number" }, "–"), h("td", { class: "number reserved" }, "–")];
        const text = format.bytes(most.allocated);
        const peak = which === "planned" ? fit.peak : fit.baseline;
        const binds = most.allocated === peak.allocated_bytes && row.phase === peak.phase && row.step === peak.step;
        const bar = h("span", { class: "bar-of", "aria-hidden": "true" }, h("span"));
        (bar.firstChild as HTMLElement).style.setProperty("width", `${((most.allocated / highest) * 100).toFixed(1)}%`);
        const { event } = most;
        const show = () => {
          timelines.pick(which, event ?? 0);
          document.getElementById("timeline")?.scrollIntoView();
        };
        const label = `${text}, ${phaseText(row)}, ${names[which]}: show in the timeline`;
        return [
          h(
            "td",
            { class: binds ? "number binds" : "number" },
            event === null ? text : button(text, show, { class: "link", "aria-label": label }),
            binds ? " ▼" : null,
            bar,
          ),
          h("td", { class: "number reserved" }, format.bytes(most.reserved)),
        ];
      }),
    ),
  );
  return part(
    "phases",
    "Phases",
    "The most of each phase",
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The most of each phase" },
      h("table", { class: "phases" }, h("thead", {}, head), h("tbody", {}, ...body)),
    ),
    h("p", { class: "faint" }, "▼ is the moment that binds. Without the context and libraries"),
  );
}

/** Phases that occur several times in a step are one row. */
function rowsOf(fit: Fit): Row[] {
  const rows: Row[] = [];
  const add = (
    which: Which,
    step: number,
    phase: string,
    allocated: number,
    reserved: number,
    event: number | null,
  ) => {
    let row = rows.find((one) => one.step === step && one.phase === phase);
    if (!row) {
      row = { step, phase, most: {} };
      rows.push(row);
    }
    const known = row.most[which];
    if (known && known.allocated >= allocated) known.reserved = Math.max(known.reserved, reserved);
    else row.most[which] = { allocated, reserved: Math.max(reserved, known?.reserved ?? 0), event };
  };
  const { timelines } = fit;
  const spans = [["baseline", timelines?.baseline] as const, ["planned", timelines?.planned] as const];
  for (const [which, timeline] of spans) {
    for (const span of timeline?.phases ?? []) {
      add(which, span.step, span.phase, span.allocated_bytes, span.reserved_bytes, span.event);
    }
  }
  if (rows.length === 0) {
    const which = fit.plan.length > 0 ? "planned" : "baseline";
    for (const one of fit.phases) add(which, one.step, one.phase, one.allocated_bytes, one.reserved_bytes, null);
  }
  return rows;
}
