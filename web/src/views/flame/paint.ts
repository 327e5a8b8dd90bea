/** Drawing the rectangles of a flame graph. */

import type { Rect } from "../../flamelayout.js";
import { classColor, ink, isDark, mix, textOn } from "../../paint.js";
import type { Pen } from "../../surface.js";

export const ROW = 20;

/** What of a node is drawn. */
export interface Face {
  color: string;
  text: string;
  /** Others stand back. */
  dim: boolean;
  strong: boolean;
}

export function paintRects(
  pen: Pen,
  rects: readonly Rect[],
  face: (rect: Rect) => Face,
  focus: number,
  hover: number,
): void {
  const { context } = pen;
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const rect of rects) {
    const { color, text, dim, strong } = face(rect);
    const y = rect.row * ROW;
    const width = Math.max(0.7, rect.width - (rect.width > 3 ? 1 : 0));
    context.globalAlpha = dim ? 0.25 : 1;
    context.fillStyle = color;
    context.fillRect(rect.x, y, width, ROW - 1);
    if (rect.width > 28) {
      context.fillStyle = textOn(color);
      context.fillText(fitted(context, text, rect.width - 10), rect.x + 5, y + ROW / 2);
    }
    context.globalAlpha = 1;
    if (strong && rect.width > 2) {
      context.strokeStyle = ink("--ink");
      context.lineWidth = 1.5;
      context.strokeRect(rect.x + 0.75, y + 0.75, width - 1.5, ROW - 2.5);
    }
  }
  outline(pen, rects, hover, ink("--ink"), 1);
  outline(pen, rects, focus, ink("--focus"), 2.5);
}

function outline({ context }: Pen, rects: readonly Rect[], node: number, color: string, width: number): void {
  const rect = node < 0 ? undefined : rects.find((one) => one.node === node);
  if (!rect) return;
  context.strokeStyle = color;
  context.lineWidth = width;
  context.strokeRect(
    rect.x + width / 2,
    rect.row * ROW + width / 2,
    Math.max(1, rect.width - 1 - width),
    ROW - 1 - width,
  );
}

/** A character's width in pixels, about: measuring every text would be slow. */
const LETTER = 6.3;

function fitted(context: CanvasRenderingContext2D, text: string, room: number): string {
  let letters = Math.floor(room / LETTER);
  if (text.length <= letters * 0.8) return text;
  if (text.length > letters * 1.6) text = text.slice(0, Math.ceil(letters * 1.6));
  while (letters > 1 && context.measureText(text).width > room) {
    text = text.replace(/…$/, "");
    const over = context.measureText(text).width - room;
    text = `${text.slice(0, Math.max(1, text.length - Math.max(1, Math.ceil(over / 9)) - 1))}…`;
    letters -= 1;
  }
  return letters > 1 ? text : "";
}

/** The colour of a node by its class, soft enough for text. */
export function classTint(name: string): string {
  return mix(classColor(name), isDark() ? "#20252c" : "#ffffff", isDark() ? 0.35 : 0.35);
}

/** Red grows, blue shrinks; the sign in the text says the same. */
export function changeTint(change: number, most: number): string {
  const part = most > 0 ? Math.min(1, Math.abs(change) / most) : 0;
  const ground = isDark() ? "#3a424d" : "#e4e8ed";
  if (change === 0) return ground;
  return mix(
    ground,
    change > 0 ? (isDark() ? "#e0685c" : "#d9503f") : isDark() ? "#5b9be0" : "#3f82cf",
    0.25 + 0.75 * Math.sqrt(part),
  );
}
