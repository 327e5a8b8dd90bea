/** Line charts by uPlot, with the colours of the theme; made when they come into sight. */

/*! This file holds uPlot, https://github.com/leeoniya/uPlot
 *
 * The MIT License (MIT)
 *
 * Copyright (c) 2022 Leon Sorokin
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
 * THE SOFTWARE.
 */

import uPlot from "uplot";
import { h } from "./dom.js";
import * as format from "./format.js";
import { ink } from "./paint.js";
import { onTheme } from "./theme.js";

export interface Line {
  label: string;
  y: ArrayLike<number | null>;
  /** A custom property that holds the colour. */
  ink: string;
  dash: number[];
  width: number;
  stepped?: boolean;
  /** What stands at the end of the line. */
  mark?: string;
}

export interface LineChart {
  label: string;
  height: number;
  x: ArrayLike<number>;
  xText: (x: number) => string;
  /** The texts along the axis, if not the same. */
  xTexts?: (splits: number[]) => string[];
  lines: Line[];
  fromZero: boolean;
}

const FONT = "11px system-ui, sans-serif";

/** An axis of sizes: its steps are round in binary units. */
export function bytesAxis(): uPlot.Axis {
  return {
    stroke: () => ink("--faint"),
    grid: { stroke: () => ink("--grid"), width: 1 },
    ticks: { show: false },
    font: FONT,
    size: 62,
    gap: 4,
    splits: (_plot, _axis, low, high) => binarySplits(low, high),
    values: (_plot, splits) => splits.map((bytes) => format.bytes(bytes)),
  };
}

export function xAxis(texts: (splits: number[]) => string[]): uPlot.Axis {
  return {
    stroke: () => ink("--faint"),
    grid: { show: false },
    ticks: { stroke: () => ink("--grid"), width: 1, size: 4 },
    font: FONT,
    size: 26,
    gap: 2,
    space: 90,
    values: (_plot, splits) => texts(splits),
  };
}

/** About five values from `low` to `high`, multiples of a power of two. */
export function binarySplits(low: number, high: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(span / 5)));
  const splits: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high && splits.length < 20; at += step) splits.push(at);
  return splits;
}

/** Charts that are on the page, to be made smaller on paper. */
const charts = new Set<{ fit(): void }>();

export function fitCharts(): void {
  for (const chart of charts) chart.fit();
}

/** Paper is narrower than most windows; more dots an inch come from drawing larger than shown. */
export const PAPER_WIDTH = 900;
let onPaper = false;

export function setChartsOnPaper(value: boolean): void {
  onPaper = value;
  fitCharts();
}

/** The element of a chart, and what keeps its size and colours right. `make` is called when it comes into sight. */
export function mounted(
  element: HTMLElement,
  height: number,
  make: (width: number) => uPlot,
): { plot: () => uPlot | null; remake(): void } {
  let plot: uPlot | null = null;
  let seen = false;
  const width = () => (onPaper ? PAPER_WIDTH : element.clientWidth);
  const chart = {
    fit() {
      // What was replaced is not on the page any more.
      if (plot && !element.isConnected) {
        charts.delete(chart);
        return;
      }
      if (!plot && onPaper && width() > 0) plot = make(width());
      else if (plot && width() > 0 && plot.width !== width()) plot.setSize({ width: width(), height });
    },
  };
  charts.add(chart);
  element.style.minHeight = `${height}px`;
  new ResizeObserver(() => {
    if (seen) chart.fit();
  }).observe(element);
  new IntersectionObserver(
    (entries) => {
      if (!entries[entries.length - 1].isIntersecting) return;
      seen = true;
      if (!plot && width() > 0) plot = make(width());
    },
    { rootMargin: "200px" },
  ).observe(element);
  onTheme(() => {
    if (element.isConnected) plot?.redraw(false, true);
  });
  return {
    plot: () => plot,
    remake() {
      plot?.destroy();
      plot = null;
      if (seen && width() > 0) plot = make(width());
    },
  };
}

/** A plain chart of lines. What it shows must be said elsewhere, too: `label` is its text for screen readers. */
export function lineChart(chart: LineChart): HTMLElement {
  const element = h("div", { class: "chart", role: "img", "aria-label": chart.label });
  const readout = h("div", { class: "tip", hidden: true });
  mounted(element, chart.height, (width) => {
    const plot = new uPlot(
      {
        width,
        height: chart.height,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: { x: { time: false }, y: { range: (_plot, low, high) => span(low, high, chart.fromZero) } },
        axes: [xAxis(chart.xTexts ?? ((splits) => splits.map(chart.xText))), bytesAxis()],
        series: [
          {},
          ...chart.lines.map((line) => ({
            label: line.label,
            stroke: () => ink(line.ink),
            width: line.width,
            dash: line.dash,
            points: { show: false },
            spanGaps: false,
            ...(line.stepped && uPlot.paths.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
          })),
        ],
        padding: [8, chart.lines.some(({ mark }) => mark) ? 18 : 8, 0, 0],
        hooks: { setCursor: [(self) => read(self, chart, readout)], draw: [(self) => marks(self, chart)] },
      },
      [Array.from(chart.x), ...chart.lines.map((line) => Array.from(line.y))] as uPlot.AlignedData,
      element,
    );
    plot.over.append(readout);
    return plot;
  });
  return element;
}

/** Letters at the ends of the lines: their colours and dashes alone would be hard to tell apart. */
function marks(plot: uPlot, chart: LineChart): void {
  const { ctx } = plot;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.font = `bold ${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  const taken: number[] = [];
  for (const { mark, y, ink: color } of chart.lines) {
    let last = y.length - 1;
    while (last >= 0 && y[last] == null) last -= 1;
    if (!mark || last < 0) continue;
    const x = plot.valToPos(chart.x[last], "x", true) + 5 * ratio;
    let at = plot.valToPos(y[last] as number, "y", true);
    while (taken.some((other) => Math.abs(other - at) < 10 * ratio)) at -= 10 * ratio;
    taken.push(at);
    ctx.fillStyle = ink(color);
    ctx.fillText(mark, x, at);
  }
  ctx.restore();
}

function read(plot: uPlot, chart: LineChart, readout: HTMLElement): void {
  const { idx, left } = plot.cursor;
  readout.hidden = idx === null || idx === undefined || left === undefined || left < 0;
  if (readout.hidden) return;
  const at = idx as number;
  const values = chart.lines
    .map((line) => ({ label: line.label, bytes: line.y[at] }))
    .filter((value) => value.bytes !== null && value.bytes !== undefined)
    .map((value) => h("div", {}, `${format.clean(value.label, 60)} ${format.bytes(value.bytes as number)}`));
  readout.replaceChildren(h("div", { class: "faint" }, chart.xText(chart.x[at])), ...values.slice(0, 12));
  readout.classList.toggle("left", (left as number) > plot.over.clientWidth / 2);
}

/** A little room above the highest value. */
export function span(low: number, high: number, fromZero: boolean): [number, number] {
  const bottom = fromZero ? 0 : low;
  const top = Math.max(high ?? 0, bottom + 1);
  return [bottom, top + (top - bottom) * 0.04];
}

/** What a drag over a chart selects, from one place of the x axis to another; less than a few pixels is none. */
export function selecting(select: (from: number, to: number) => void): (plot: uPlot) => void {
  return (plot) => {
    const { left, width } = plot.select;
    if (width < 5) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    select(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  };
}
