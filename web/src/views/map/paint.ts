/** Drawing the rows of the segment map. */

import type { Bar, Row } from "../../maplayout.js";
import type { Memory } from "../../memory.js";
import type { Model } from "../../model.js";
import { classColor, classFill, freeFill, ink, waitingFill } from "../../paint.js";
import type { Piece } from "../../ranges.js";
import type { Pen } from "../../surface.js";

export const ROW = 20;
export const BAR = 15;

/** From this width on a pattern can be seen. */
const PATTERN_WIDTH = 7;

export interface Scene {
  rows: Row[];
  /** The first row in sight, and how far it is scrolled out. */
  first: number;
  offset: number;
  memory: Memory;
  model: Model;
  /** Blocks and free pieces of a range. */
  pieces: (range: number) => Piece[];
  /** Rows of blocks that are emphasised; null for none. */
  marked: ((row: number) => boolean) | null;
  /** Address of the piece that is chosen, and of the one under the pointer. */
  chosen: number;
  hover: number;
}

export function paintRows(pen: Pen, scene: Scene): void {
  const { context, height } = pen;
  context.textBaseline = "middle";
  for (let index = scene.first; index < scene.rows.length; index++) {
    const y = (index - scene.first) * ROW - scene.offset;
    if (y > height) break;
    const row = scene.rows[index];
    if ("title" in row) {
      context.fillStyle = ink("--faint");
      context.font = "12px system-ui, sans-serif";
      context.fillText(row.title, 0, y + ROW / 2 + 1);
    } else for (const bar of row.bars) paintBar(pen, scene, bar, y + (ROW - BAR) / 2);
  }
}

function paintBar(pen: Pen, scene: Scene, bar: Bar, y: number): void {
  const { context } = pen;
  const { memory, model } = scene;
  const pieces = scene.pieces(bar.range);
  const start = pieces[0]?.address ?? 0;
  const scale = bar.width / (bar.to - bar.from);
  const at = (address: number) => bar.x + (address - start - bar.from) * scale;
  context.fillStyle = freeFill(pen.ratio);
  context.fillRect(bar.x, y, bar.width, BAR);
  let index = firstAfter(pieces, start + bar.from);
  let drawnTo = Number.NEGATIVE_INFINITY;
  let lastFill = "";
  const frames: [number, number, string, number][] = [];
  for (; index < pieces.length; index++) {
    const piece = pieces[index];
    if (piece.address >= start + bar.to) break;
    const left = Math.max(bar.x, at(piece.address));
    const right = Math.min(bar.x + bar.width, at(piece.address + piece.size));
    if (piece.address === scene.chosen) frames.push([left, right, "--focus", 2.5]);
    if (piece.address === scene.hover) frames.push([left, right, "--ink", 1.5]);
    if (piece.row < 0) continue;
    // Blocks thinner than a pixel: what was drawn there already says enough.
    if (right <= drawnTo) continue;
    const name = model.classes[memory.classOf[memory.sort[piece.row]]]?.name ?? "unknown";
    const width = Math.max(0.8, right - left - (right - left > 4 ? 0.8 : 0));
    const dim = scene.marked !== null && !scene.marked(piece.row);
    context.globalAlpha = dim ? 0.25 : 1;
    const fill = width >= PATTERN_WIDTH ? name : `=${name}`;
    if (piece.waiting) context.fillStyle = waitingFill(pen.ratio);
    else if (fill !== lastFill)
      context.fillStyle = width >= PATTERN_WIDTH ? classFill(name, pen.ratio) : classColor(name);
    lastFill = piece.waiting ? "" : fill;
    context.fillRect(left, y, width, BAR);
    drawnTo = Math.max(left + 0.8, Math.floor(right));
  }
  context.globalAlpha = 1;
  context.strokeStyle = ink("--line");
  context.lineWidth = 1;
  context.strokeRect(bar.x + 0.5, y - 0.5, Math.max(1, bar.width - 1), BAR + 1);
  for (const [left, right, color, width] of frames) {
    context.strokeStyle = ink(color);
    context.lineWidth = width;
    context.strokeRect(left - 1, y - 1.5, Math.max(4, right - left + 2), BAR + 3);
  }
}

/** The first piece that ends behind `address`. */
function firstAfter(pieces: Piece[], address: number): number {
  let low = 0;
  let high = pieces.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (pieces[middle].address + pieces[middle].size <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}
