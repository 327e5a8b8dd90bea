/** One timeline as a chart: areas by class over the context, reserved memory, the budget, phases and the peak. */

import uPlot from "uplot";
import { bytesAxis, selecting, xAxis } from "../chart.js";
import * as format from "../format.js";
import { classFill, ink } from "../paint.js";
import { stacked } from "../stack.js";
import type { PhaseSpan } from "./data.js";
import type { Memory } from "./memory.js";

export type Axis = "time" | "events";

export interface Frame {
  axis: Axis;
  /** Where the axis counts from, as its own values do. */
  origin: number;
  /** What is shown of the axis. */
  low: number;
  high: number;
  /** The highest value of the other axis, in bytes. */
  top: number;
}

export interface Amounts {
  context: number;
  budget: number;
}

/** Room above the plot for the names of phases. */
const HEAD = 30;
const FONT = "11px system-ui, sans-serif";

/** Where each point is on an axis. Times count from `origin`: so the values at the axis are round. */
export function xs(memory: Memory, axis: Axis, origin: number): Float64Array {
  return axis === "time" ? memory.times.map((time) => time - origin) : memory.events;
}

export function columns(memory: Memory, x: Float64Array, context: number): uPlot.AlignedData {
  const layers = [new Float64Array(x.length).fill(context), ...memory.layers.map(({ bytes }) => bytes)];
  const tops = stacked(
    layers,
    layers.map((_, index) => index),
  ).reverse();
  const reserved = Float64Array.from(memory.timeline.reserved, (bytes) => bytes + context);
  return [x, ...tops, reserved] as unknown as uPlot.AlignedData;
}

export function makePlot(
  host: HTMLElement,
  memory: Memory,
  amounts: Amounts,
  size: { width: number; height: number },
  frame: () => Frame,
  picked: () => number,
  hooks: { select(low: number, high: number): void; cursor(plot: uPlot): void },
): uPlot {
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const paths = stepped ? { paths: stepped } : {};
  const areas = ["context", ...memory.layers.map(({ name }) => name)].reverse().map((name) => ({
    label: name,
    fill: () => classFill(name, uPlot.pxRatio, 1) as CanvasRenderingContext2D["fillStyle"],
    width: 0,
    points: { show: false },
    ...paths,
  }));
  const texts = (splits: number[]) => (frame().axis === "time" ? format.axisTimes(splits) : splits.map(format.count));
  return new uPlot(
    {
      ...size,
      padding: [HEAD, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 5 } },
      scales: {
        x: { time: false, auto: false, range: () => [frame().low, frame().high] },
        y: { auto: false, range: () => [0, frame().top] },
      },
      axes: [xAxis(texts), bytesAxis()],
      series: [
        {},
        ...areas,
        { label: "reserved", stroke: () => ink("--ink"), width: 1.5, points: { show: false }, ...paths },
      ] as uPlot.Series[],
      hooks: {
        setSelect: [selecting(hooks.select)],
        setCursor: [hooks.cursor],
        draw: [
          (self) => {
            phases(self, memory.timeline.phases, frame());
            budget(self, amounts.budget, frame().top);
            moments(self, memory, amounts, frame(), picked());
          },
        ],
      },
    },
    columns(memory, xs(memory, frame().axis, frame().origin), amounts.context),
    host,
  );
}

/** A line where each phase begins, and its name above it where there is room. */
function phases(plot: uPlot, spans: readonly PhaseSpan[], { axis, origin }: Frame): void {
  const { ctx, bbox } = plot;
  const { min, max } = plot.scales.x;
  if (min == null || max == null) return;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.font = FONT.replace("11px", `${11 * ratio}px`);
  ctx.textBaseline = "middle";
  ctx.textAlign = "center";
  ctx.lineWidth = ratio;
  const right = bbox.left + bbox.width;
  for (const span of spans) {
    const [low, high] = axis === "time" ? [span.start_us - origin, span.end_us - origin] : [span.start, span.end];
    if (high < min || low > max) continue;
    const start = Math.max(bbox.left, plot.valToPos(low, "x", true));
    const end = Math.min(right, plot.valToPos(high, "x", true));
    const at = Math.round(start) + 0.5;
    ctx.strokeStyle = ink("--faint");
    ctx.globalAlpha = 0.55;
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top - 14 * ratio);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.fillStyle = ink("--faint");
    const name = span.phase.replaceAll("_", " ");
    if (ctx.measureText(name).width + 8 * ratio < end - start) {
      ctx.fillText(name, (start + end) / 2, bbox.top - 9 * ratio);
    }
  }
  ctx.restore();
}

function budget(plot: uPlot, bytes: number, top: number): void {
  if (bytes > top) return;
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  const at = Math.round(plot.valToPos(bytes, "y", true)) + 0.5;
  ctx.save();
  ctx.strokeStyle = ink("--bad");
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([7 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, at);
  ctx.lineTo(bbox.left + bbox.width, at);
  ctx.stroke();
  ctx.restore();
}

/** The moment that binds, as a triangle, and the picked one, as a line. */
function moments(
  plot: uPlot,
  memory: Memory,
  { context }: Amounts,
  { axis, origin, low, high, top }: Frame,
  picked: number,
): void {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  const x = xs(memory, axis, origin);
  ctx.save();
  if (x[picked] >= low && x[picked] <= high) {
    const at = Math.round(plot.valToPos(x[picked], "x", true)) + 0.5;
    ctx.strokeStyle = ink("--focus");
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
  }
  const peak = memory.peakPoint;
  if (x[peak] >= low && x[peak] <= high) {
    const left = plot.valToPos(x[peak], "x", true);
    const above = plot.valToPos(Math.min(top, memory.allocated[peak] + context), "y", true) - 2 * ratio;
    ctx.fillStyle = ink("--ink");
    ctx.strokeStyle = ink("--paper");
    ctx.lineWidth = 1.5 * ratio;
    ctx.beginPath();
    ctx.moveTo(left, above);
    ctx.lineTo(left - 5 * ratio, above - 9 * ratio);
    ctx.lineTo(left + 5 * ratio, above - 9 * ratio);
    ctx.closePath();
    ctx.stroke();
    ctx.fill();
  }
  ctx.restore();
}
