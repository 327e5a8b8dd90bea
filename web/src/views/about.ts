/** What was read, how sure the answers are, and what this file holds of it. */

import type { App } from "../app.js";
import { h, prose } from "../dom.js";
import * as format from "../format.js";
import { MOMENTS } from "../model.js";
import type { Report } from "../report.js";
import { swatch } from "./legend.js";
import { part, type Part } from "./section.js";
import { fact } from "./verdict.js";

export function aboutView(app: App): Part {
  const { model } = app;
  const { report, page } = model;
  const { source } = report;
  const facts = h("dl", { class: "facts" });
  fact(facts, "File", h("code", {}, source.path === "-" ? "standard input" : format.clean(source.path)));
  fact(facts, "Format", format.clean(source.format));
  fact(facts, "Size", `${format.bytes(source.bytes)} (${format.count(source.bytes)} bytes)`);
  fact(facts, "Device", `${source.device} (${format.counted(source.devices, "device")} in the recording)`);
  fact(facts, "Events", events(report));
  const start = new Date(page.start_us / 1000);
  // A clock may be set to anything.
  if (page.start_us > 0 && !Number.isNaN(start.getTime()))
    fact(facts, "Started", start.toISOString().replace("T", " ").slice(0, 19) + " UTC");
  const program = Object.entries(source.facts ?? {}).map(([name, value]) => format.clean(`${name} ${value}`));
  if (program.length > 0) fact(facts, "Program", program.join(", "));
  fact(facts, "Settings", format.settings(source.conf));
  fact(
    facts,
    "History",
    source.complete
      ? "complete: starts at the first allocation"
      : `starts later: ${format.bytes(source.reserved_before)} were already reserved`,
  );
  fact(facts, "Steps", steps(report));
  fact(facts, "Replay", replay(report));
  if (source.notes.length > 0) {
    fact(facts, "Notes", h("ul", {}, ...source.notes.map((note) => h("li", {}, ...prose(format.capitalized(note))))));
  }
  fact(facts, "This page", left(app));
  fact(facts, "Written by", `${format.clean(page.generator)} (${page.schema}, ${format.clean(report.schema)})`);
  return part("about", "About", "About this recording", facts, classes(app));
}

function events({ source }: Report): string {
  const all = source.devices > 1 ? ` of this device, ${format.count(source.events)} of all` : "";
  const over = source.duration_us > 0 ? `, over ${format.duration(source.duration_us)}` : "";
  return `${format.count(source.device_events)}${all}${over}`;
}

function steps({ steps: { count, how, unit } }: Report): string {
  const from = {
    annotation: "from PyTorch's annotations",
    optimizer_frames: "seen in the stacks",
    period: "from what recurs",
    none: "",
  }[how];
  if (!from) return "none found";
  const turn = unit === "" || unit.startsWith("call of ");
  const name = turn
    ? `${count === 1 ? "turn" : "turns"}${unit === "" ? "" : ` (${format.clean(unit)})`}`
    : plural(count, format.clean(unit));
  return `${format.count(count)} ${name}, ${from}`;
}

function plural(count: number, unit: string): string {
  if (unit.startsWith("`")) return `${count === 1 ? "call" : "calls"} of ${unit}`;
  if (count === 1) return unit;
  if (unit.startsWith("round of ")) return `rounds of ${unit.slice("round of ".length)}`;
  return `${unit}${unit.endsWith("s") ? "es" : "s"}`;
}

function replay({ replay: at }: Report): string {
  const of = format.counted(at.segment_events, "segment event");
  if (at.exact && at.segment_events === 0) return "exact: no segment events in the recording";
  if (at.exact) return `exact: ${format.count(at.matched)} of ${of} predicted with ${format.settings(at.conf)}`;
  const first = at.first_mismatch === null ? "" : `; first difference: ${format.clean(at.first_mismatch)}`;
  return `sizes as recorded; ${format.count(at.matched)} of ${of} predicted${first}`;
}

/** What of the recording is in this file. */
function left({ model }: App): string {
  if (model.page.served) return "served by gpuheap: every block is fetched when it is asked for";
  const { memory } = model;
  if (memory.complete)
    return `holds every block (${format.count(memory.length)}) and every segment (${format.count(memory.ofSegments)})`;
  const names = model.moments
    .filter(({ tick }) => memory.isExact(tick))
    .map(({ name }) => MOMENTS[name]?.title.toLowerCase());
  const exact = names.length > 0 ? ` and all at these moments: ${names.join(", ")}` : "";
  return (
    `keeps ${format.count(memory.length)} of ${format.counted(memory.ofBlocks, "block")}, those that matter most${exact}; ` +
    "sums and curves are exact, and `gpuheap serve FILE` shows everything"
  );
}

function classes({ model }: App): HTMLElement | null {
  const { report } = model;
  if (report.classes.length === 0) return null;
  const moment = report.ledger_at.replace("-", "_") as keyof typeof MOMENTS;
  const rows = report.classes.map((rule) =>
    h(
      "tr",
      {},
      h("td", {}, swatch(rule.class), model.classes.find(({ name }) => name === rule.class)?.title ?? rule.class),
      h("td", { class: "number" }, format.bytes(rule.bytes)),
      h("td", { class: "number" }, format.count(rule.blocks)),
      h("td", {}, ...prose(rule.rule)),
    ),
  );
  const head = ["class", "bytes", "blocks", "rule"].map((text, index) =>
    h("th", { scope: "col", class: index === 1 || index === 2 ? "number" : "" }, text),
  );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "How memory was classed" },
    h(
      "table",
      {},
      h("caption", {}, `How memory was classed ${MOMENTS[moment]?.sentence ?? ""}`),
      h("thead", {}, h("tr", {}, ...head)),
      h("tbody", {}, ...rows),
    ),
  );
}
