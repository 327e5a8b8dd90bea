/** What is known of a block or of a free piece. */

import type { App } from "../../app.js";
import { button, h } from "../../dom.js";
import * as format from "../../format.js";
import type { Memory } from "../../memory.js";
import { NEVER } from "../../memory.js";
import type { Piece, Range } from "../../ranges.js";
import { stackElement } from "../stack.js";
import { fact } from "../verdict.js";

/** One sentence, for the line below the map and for screen readers. */
export function pieceText(app: App, memory: Memory, piece: Piece, range: Range): string {
  const { model } = app;
  if (piece.row < 0) {
    const what = app.moment.value.exact ? "free" : "free, or smaller blocks that are not kept in this file";
    return `${format.hex(piece.address)} · ${format.bytes(piece.size)} ${what} · ${model.laneText(range.lane)}`;
  }
  const sort = memory.sort[piece.row];
  const place = memory.sorts.place[sort];
  const site = model.siteText(model.tree.site[place] ?? -1);
  const title = model.classes[memory.classOf[sort]]?.title ?? "unknown";
  const waiting = piece.waiting ? " · waits for another stream" : "";
  return `${format.hex(piece.address)} · ${format.bytes(piece.size)} ${title}${waiting} · ${site} · ${age(app, memory, piece.row)}`;
}

function age(app: App, memory: Memory, row: number): string {
  const { model } = app;
  const { tick } = app.moment.value;
  const born = memory.born[row];
  if (born === 0) return "from before the recording";
  const [then, now] = [model.timeAt(born), model.timeAt(tick)];
  const time = then !== null && now !== null ? `, ${format.duration(now - then)} old` : "";
  return `born in event ${format.count(born - 1)}${time}`;
}

/** Everything, for the piece that is chosen. */
export function pieceDetail(app: App, memory: Memory, piece: Piece, range: Range): HTMLElement {
  const { model } = app;
  const facts = h("dl", { class: "facts" });
  fact(facts, "Address", h("code", {}, `${format.hex(piece.address)} to ${format.hex(piece.address + piece.size)}`));
  fact(facts, "Size", `${format.bytes(piece.size)} (${format.count(piece.size)} bytes)`);
  fact(
    facts,
    "Segment",
    `${format.hex(range.address)}, ${format.bytes(range.size)}${range.expandable ? `, expandable, ${format.counted(range.segments, "piece")}` : ""}`,
  );
  fact(facts, "Pool", model.laneText(range.lane));
  if (piece.row < 0) return facts;
  const sort = memory.sort[piece.row];
  const place = memory.sorts.place[sort];
  const site = model.tree.site[place] ?? -1;
  const rule = model.rules[memory.sorts.rule[sort]];
  const freed = memory.freed[piece.row];
  fact(facts, "Asked for", `${format.count(memory.sorts.requested[sort])} bytes`);
  fact(facts, "Class", `${model.classes[memory.classOf[sort]]?.title ?? "unknown"}: ${format.clean(rule?.text ?? "")}`);
  fact(facts, "Age", age(app, memory, piece.row));
  fact(facts, "Freed", freed === NEVER ? "never" : `in event ${format.count(freed - 1)}`);
  if (piece.waiting) fact(facts, "Waits", "its memory is free only when another stream is done with it");
  fact(facts, "Site", model.siteText(site, true), " ", site >= 0 ? button("Select", () => app.site.set(site)) : "");
  const stack = model.stack(place).map((frame) => ({ ...model.framePlace(frame), kind: model.frames.kind[frame] }));
  if (stack.length > 0)
    fact(
      facts,
      "Stack",
      stackElement(stack, (frame) => frame.kind === 0),
    );
  return facts;
}
