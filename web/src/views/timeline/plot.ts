/** The chart itself: areas by class, reserved memory and the limit as lines. */

import uPlot from "uplot";
import { bytesAxis, selecting, span, xAxis } from "../../chart.js";
import type { Model, Timeline } from "../../model.js";
import { classFill, ink } from "../../paint.js";
import { thinned } from "../../span.js";
import { stacked } from "../../stack.js";

export interface Drawn {
  timeline: Timeline;
  xs: Float64Array;
  /** Bytes of the selected site at each point; null where none is selected. */
  site: Float64Array | null;
}

/** The columns as uPlot takes them: the top of the stack first, so that what is below is drawn over it. */
export function columns(model: Model, drawn: Drawn, limit: number | null): uPlot.AlignedData {
  const { timeline, xs } = drawn;
  const tops = stacked(timeline.classes, model.order).reverse();
  const flat = limit === null ? null : new Float64Array(xs.length).fill(limit);
  const empty = new Array<null>(xs.length).fill(null);
  return [xs, ...tops, timeline.reserved, flat ?? empty, drawn.site ?? empty] as unknown as uPlot.AlignedData;
}

export interface Hooks {
  select(low: number, high: number): void;
  cursor(plot: uPlot): void;
  moved(plot: uPlot): void;
}

export function plot(
  model: Model,
  host: HTMLElement,
  size: { width: number; height: number },
  data: uPlot.AlignedData,
  range: () => { low: number; high: number },
  texts: (splits: number[]) => string[],
  stepXs: () => ArrayLike<number>,
  hooks: Hooks,
): uPlot {
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const paths = stepped ? { paths: stepped } : {};
  const areas = [...model.order].reverse().map((index) => {
    const { name, title } = model.classes[index];
    return {
      label: title,
      fill: () => classFill(name, uPlot.pxRatio, 1) as CanvasRenderingContext2D["fillStyle"],
      width: 0,
      points: { show: false },
      ...paths,
    };
  });
  const line = (label: string, color: string, width: number, dash: number[]) => ({
    label,
    stroke: () => ink(color),
    width,
    dash,
    points: { show: false },
    ...paths,
  });
  return new uPlot(
    {
      ...size,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, dist: 5 } },
      scales: {
        x: { time: false, auto: false, range: () => [range().low, range().high] },
        y: { range: (_plot, low, high) => span(low, high, true) },
      },
      axes: [xAxis(texts), bytesAxis()],
      series: [
        {},
        ...areas,
        line("reserved", "--ink", 1.5, []),
        line("limit", "--bad", 1.5, [7, 4]),
        line("site", "--accent", 2.5, [2, 2]),
      ] as uPlot.Series[],
      hooks: {
        setSelect: [selecting(hooks.select)],
        setCursor: [hooks.cursor],
        draw: [
          (self) => {
            steps(self, stepXs());
            hooks.moved(self);
          },
        ],
      },
    },
    data,
    host,
  );
}

/** The ends of the steps, as ticks that rise from the axis; only some where they are dense. */
function steps(self: uPlot, xs: ArrayLike<number>): void {
  const { ctx, bbox } = self;
  const { min, max } = self.scales.x;
  if (min == null || max == null || !(max > min)) return;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.strokeStyle = ink("--ink");
  ctx.globalAlpha = 0.55;
  ctx.lineWidth = ratio;
  ctx.beginPath();
  const bottom = bbox.top + bbox.height;
  for (const x of thinned(xs, ((max - min) / bbox.width) * 6 * ratio)) {
    if (x < min || x > max) continue;
    const at = Math.round(self.valToPos(x, "x", true)) + 0.5;
    ctx.moveTo(at, bottom);
    ctx.lineTo(at, bottom - 7 * ratio);
  }
  ctx.stroke();
  ctx.restore();
}
