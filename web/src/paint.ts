/** Colours and patterns of the theme that is in force. */

import { look } from "./classes.js";

const PATTERN_SIZE = 8;

let dark = false;
const cache = new Map<string, CanvasPattern | string>();

export function setDark(value: boolean): void {
  dark = value;
  cache.clear();
}

export function isDark(): boolean {
  return dark;
}

/** The value of a custom property, such as `--ink`. */
export function ink(name: string): string {
  let value = cache.get(name) as string | undefined;
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    cache.set(name, value);
  }
  return value;
}

export function classColor(name: string): string {
  return dark ? look(name).dark : look(name).light;
}

/**
 * What a class is filled with on a canvas of `ratio` device pixels a pixel, whose context is scaled by `scale` (the
 * ratio, unless something else draws in device pixels).
 */
export function classFill(name: string, ratio: number, scale = ratio): CanvasPattern | string {
  return kept(`${name}/${ratio}/${scale}`, () => {
    const { pattern } = look(name);
    if (pattern === "plain") return classColor(name);
    const line = dark ? "rgba(0,0,0,.3)" : "rgba(255,255,255,.45)";
    return tile(classColor(name), line, pattern, ratio, scale);
  });
}

/** Diagonals that say "nothing here". */
export function freeFill(ratio: number): CanvasPattern | string {
  return kept(`free/${ratio}`, () => tile(ink("--paper"), ink("--hatch"), "falling", ratio, ratio));
}

/** Diagonals over a block that waits for another stream. */
export function waitingFill(ratio: number): CanvasPattern | string {
  return kept(`waiting/${ratio}`, () => tile(ink("--paper"), ink("--ink"), "rising", ratio, ratio));
}

function kept<T extends CanvasPattern | string>(key: string, make: () => T): CanvasPattern | string {
  let fill = cache.get(key);
  if (fill === undefined) {
    fill = make();
    cache.set(key, fill);
  }
  return fill;
}

function tile(ground: string, line: string, pattern: string, ratio: number, scale: number): CanvasPattern | string {
  const size = Math.round(PATTERN_SIZE * ratio);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  if (!context) return ground;
  context.fillStyle = ground;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = line;
  context.lineWidth = 1.4 * ratio;
  context.beginPath();
  const stroke = (x0: number, y0: number, x1: number, y1: number) => {
    context.moveTo(x0 * size, y0 * size);
    context.lineTo(x1 * size, y1 * size);
  };
  if (pattern === "rising" || pattern === "cross") {
    for (const shift of [-1, 0, 1]) stroke(shift - 0.25, 1.25, shift + 1.25, -0.25);
  }
  if (pattern === "falling" || pattern === "cross") {
    for (const shift of [-1, 0, 1]) stroke(shift - 0.25, -0.25, shift + 1.25, 1.25);
  }
  if (pattern === "lines") stroke(0, 0.5, 1, 0.5);
  if (pattern === "bars") stroke(0.5, 0, 0.5, 1);
  if (pattern === "dots") context.arc(size / 2, size / 2, 1.3 * ratio, 0, 7);
  if (pattern === "dots") context.fill();
  else context.stroke();
  const made = context.createPattern(canvas, "repeat");
  made?.setTransform(new DOMMatrix().scale(1 / scale));
  return made ?? ground;
}

/** Black or white, whichever can be read on a colour of the form `#rrggbb`. */
export function textOn(color: string): string {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = Number.parseInt(color.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#111" : "#fff";
}

/** A mix of two colours of the form `#rrggbb`. */
export function mix(one: string, other: string, part: number): string {
  const channel = (at: number) => {
    const [a, b] = [one, other].map((color) => Number.parseInt(color.slice(at, at + 2), 16));
    return Math.round(a + (b - a) * part)
      .toString(16)
      .padStart(2, "0");
  };
  return `#${channel(1)}${channel(3)}${channel(5)}`;
}
