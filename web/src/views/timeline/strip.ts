/** The overview below the chart: the whole recording, with the part that is shown. */

import type { Model } from "../../model.js";
import { ink } from "../../paint.js";
import type { Span } from "../../span.js";
import { panned } from "../../span.js";
import { Surface } from "../../surface.js";

const HEIGHT = 42;
/** How near the pointer must be to an edge to move it alone. */
const EDGE = 7;

export interface Strip {
  element: HTMLElement;
  show(span: Span): void;
  /** The axis changed. */
  refresh(): void;
}

export function strip(
  model: Model,
  xs: () => ArrayLike<number>,
  whole: () => Span,
  change: (span: Span) => void,
): Strip {
  let shown = whole();
  const { timeline } = model;
  const surface = new Surface(
    "The whole recording, with the part that is shown",
    HEIGHT,
    ({ context, width, height }) => {
      const { low, high } = whole();
      const x = xs();
      const top = Math.max(
        1,
        timeline.reserved.reduce((most, value) => Math.max(most, value), 0),
        ...moments(model),
      );
      const at = (value: number) => ((value - low) / (high - low || 1)) * width;
      const y = (bytes: number) => height - (bytes / top) * (height - 4);
      context.fillStyle = ink("--area");
      context.beginPath();
      context.moveTo(0, height);
      for (let index = 0; index < x.length; index++) context.lineTo(at(x[index]), y(timeline.allocated[index]));
      context.lineTo(width, height);
      context.fill();
      context.strokeStyle = ink("--faint");
      context.lineWidth = 1;
      context.beginPath();
      for (let index = 0; index < x.length; index++) context.lineTo(at(x[index]), y(timeline.reserved[index]));
      context.stroke();
      const [left, right] = [at(shown.low), at(shown.high)];
      context.fillStyle = ink("--veil");
      context.fillRect(0, 0, left, height);
      context.fillRect(right, 0, width - right, height);
      context.strokeStyle = ink("--accent");
      context.lineWidth = 2;
      context.strokeRect(left + 1, 1, Math.max(2, right - left - 2), height - 2);
    },
  );
  const { canvas } = surface;
  canvas.classList.add("strip");
  canvas.addEventListener("pointerdown", (down) => {
    const { low, high } = whole();
    const value = (event: PointerEvent) => low + (event.offsetX / Math.max(1, surface.width)) * (high - low);
    const near = ((high - low) * EDGE) / Math.max(1, surface.width);
    const start = value(down);
    const before = shown;
    const [atLow, atHigh] = [Math.abs(start - before.low) < near, Math.abs(start - before.high) < near];
    const inside = start > before.low && start < before.high && (before.low > low || before.high < high);
    canvas.setPointerCapture(down.pointerId);
    const move = (event: PointerEvent) => {
      const now = value(event);
      if (atLow && !atHigh) change(ordered(now, before.high));
      else if (atHigh && !atLow) change(ordered(before.low, now));
      else if (inside) change(panned(before, now - start));
      else if (Math.abs(now - start) > near) change(ordered(start, now));
    };
    canvas.addEventListener("pointermove", move);
    const end = () => canvas.removeEventListener("pointermove", move);
    canvas.addEventListener("pointerup", end, { once: true });
    canvas.addEventListener("pointercancel", end, { once: true });
  });
  canvas.addEventListener("dblclick", () => change(whole()));
  return {
    element: canvas,
    show(span) {
      shown = span;
      surface.invalidate();
    },
    refresh: () => surface.invalidate(),
  };
}

function ordered(a: number, b: number): Span {
  return a < b ? { low: a, high: b } : { low: b, high: a };
}

function moments(model: Model): number[] {
  return [model.report.peaks.allocated_bytes];
}
