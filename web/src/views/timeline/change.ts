/** What one moment says under the pointer: how much, of what, and what changed since the point before. */

import { h } from "../../dom.js";
import * as format from "../../format.js";
import type { Model, Timeline } from "../../model.js";
import { swatch } from "../legend.js";

/** Blocks that are named. */
const NAMED = 3;

export function readout(
  model: Model,
  timeline: Timeline,
  index: number,
  site: { text: string; bytes: number } | null,
): Node[] {
  const tick = timeline.ticks[index];
  const time = timeline.times.length > 0 ? ` · ${format.duration(timeline.times[index])}` : "";
  const nodes: Node[] = [
    h("div", { class: "faint" }, `${eventText(tick)}${time}`),
    h(
      "div",
      {},
      h("strong", {}, format.bytes(timeline.allocated[index])),
      " allocated of ",
      h("strong", {}, format.bytes(timeline.reserved[index])),
      " reserved",
    ),
  ];
  const list = h("div", { class: "tip-classes" });
  for (const at of [...model.order].reverse()) {
    const bytes = timeline.classes[at][index];
    if (bytes <= 0) continue;
    list.append(
      swatch(model.classes[at].name),
      h("span", {}, model.classes[at].title),
      h("span", { class: "number" }, format.bytes(bytes)),
    );
  }
  nodes.push(list);
  if (site) nodes.push(h("div", {}, `${site.text}: ${format.bytes(site.bytes)}`));
  if (index > 0) nodes.push(...changes(model, timeline.ticks[index - 1], tick));
  return nodes;
}

/** The moment as a person counts: after which event. */
export function eventText(tick: number): string {
  return tick === 0 ? "before the first event" : `after event ${format.count(tick - 1)}`;
}

function changes(model: Model, before: number, tick: number): Node[] {
  const { memory } = model;
  const changed = memory.changes(before, tick);
  const nodes: Node[] = [];
  const size = (row: number) => memory.sorts.size[memory.sort[row]];
  for (const [rows, sign, word] of [
    [changed.born, "+", "allocated"],
    [changed.freed, "\u2212", "freed"],
  ] as const) {
    if (rows.length === 0) continue;
    let bytes = 0;
    for (const row of rows) bytes += size(row);
    nodes.push(
      h(
        "div",
        { class: "tip-change" },
        `${sign}${format.bytes(bytes)} ${word} in ${format.counted(rows.length, "block")}`,
      ),
    );
    for (const row of largest(rows, size)) {
      const sort = memory.sort[row];
      const site = model.siteText(model.tree.site[memory.sorts.place[sort]] ?? -1);
      nodes.push(h("div", { class: "tip-block" }, `${sign}${format.bytes(size(row))} ${site}`));
    }
  }
  const since = tick - before > 1 ? `in the last ${format.count(tick - before)} events` : "by this event";
  const kept = memory.complete ? "" : ", of the blocks in this file";
  if (nodes.length > 0) nodes.unshift(h("div", { class: "faint" }, `Changed ${since}${kept}:`));
  return nodes;
}

function largest(rows: ArrayLike<number>, size: (row: number) => number): number[] {
  const best: number[] = [];
  for (let index = 0; index < rows.length; index++) {
    const row = rows[index];
    if (best.length === NAMED && size(row) <= size(best[NAMED - 1])) continue;
    best.push(row);
    best.sort((a, b) => size(b) - size(a));
    best.length = Math.min(best.length, NAMED);
  }
  return best;
}
