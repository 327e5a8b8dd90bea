/** Time against memory: the fastest plan for every budget. */

import { binarySplits } from "../chart.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { legendMark } from "../views/legend.js";
import { part, type Part } from "../views/section.js";
import { type FitPage, percent } from "./data.js";
import { svg } from "./svg.js";

const HEIGHT = 300;
const LEFT = 74;
const RIGHT = 24;
const TOP = 22;
const BOTTOM = 34;

interface Point {
  bytes: number;
  us: number;
  title: string;
}

export function frontView(page: FitPage): Part | null {
  const { fit } = page;
  const points: Point[] = fit.front
    .map((point, index) => ({ bytes: point.budget_bytes, us: point.step_us, title: page.titles[index] ?? "" }))
    .sort((a, b) => a.bytes - b.bytes);
  if (points.length === 0) return null;
  const host = h("div", { class: "front" });
  const said = h("p", { class: "info", "aria-live": "polite" });
  const rows: HTMLElement[] = [];
  let chosen = -1;
  const choose = (index: number) => {
    chosen = index;
    const { bytes, us, title } = points[index];
    said.replaceChildren(
      h("strong", {}, `${format.bytes(bytes)}, ${format.duration(us)} a step`),
      ` (${percent(us - fit.baseline.step_us, fit.baseline.step_us)}): ${format.clean(title, 400)}`,
    );
    rows.forEach((row, at) => row.classList.toggle("chosen", at === index));
    for (const [at, mark] of [...host.querySelectorAll(".front-point")].entries()) {
      mark.classList.toggle("chosen", at === index);
    }
  };
  const draw = () => {
    const width = Math.max(300, host.clientWidth || 900);
    host.replaceChildren(drawing(page, points, width, choose));
    if (chosen >= 0) choose(chosen);
  };
  new ResizeObserver(draw).observe(host);
  const head = ["budget", "step", "", "changes"].map((name, index) =>
    name === "" ? h("td", {}) : h("th", { scope: "col", class: index < 2 ? "number" : "" }, name),
  );
  rows.push(
    ...points.map((point, index) => {
      const own = isPlan(page, point);
      return h(
        "tr",
        { class: own ? "best" : "", onmouseenter: () => choose(index) },
        h("td", { class: "number" }, format.bytes(point.bytes)),
        h("td", { class: "number" }, format.duration(point.us)),
        h("td", { class: "number" }, percent(point.us - fit.baseline.step_us, fit.baseline.step_us)),
        h("td", {}, format.clean(point.title, 400), own ? " ◆" : ""),
      );
    }),
  );
  const marks = [
    legendMark("front", "the fastest plan"),
    legendMark("plan", fit.plan.length > 0 ? "this plan" : "as it is"),
  ];
  marks.push(legendMark("limit", "budget", h("span", { class: "number" }, format.bytes(fit.budget_bytes))));
  return part(
    "front",
    "Time by budget",
    "Time of a step by budget",
    host,
    h("ul", { class: "legend" }, ...marks),
    said,
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The fastest plan for each budget" },
      h("table", { class: "front-table" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)),
    ),
  );
}

function isPlan(page: FitPage, { bytes, us }: Point): boolean {
  const { peak, step_us: step } = page.fit;
  return Math.abs(bytes - peak.high) <= peak.high * 0.002 && Math.abs(us - step) <= step * 0.002;
}

function drawing(page: FitPage, points: Point[], width: number, choose: (index: number) => void): SVGElement {
  const { fit } = page;
  const memory = [...points.map(({ bytes }) => bytes), fit.peak.high];
  const around = (values: number[]): [number, number] => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = Math.max((high - low) * 0.06, high * 0.01, 1);
    return [Math.max(0, low - room), high + room];
  };
  const near = around(memory);
  const far = (near[1] - near[0]) * 0.5;
  const budget = fit.budget_bytes;
  if (budget >= near[0] - far && budget <= near[1] + far) memory.push(budget);
  const [least, most] = around(memory);
  const [fastest, slowest] = around([...points.map(({ us }) => us), fit.step_us]);
  const right = width - RIGHT;
  const bottom = HEIGHT - BOTTOM;
  const x = (bytes: number) => LEFT + ((bytes - least) / (most - least)) * (right - LEFT);
  const y = (us: number) => bottom - ((us - fastest) / (slowest - fastest)) * (bottom - TOP);
  const parts: SVGElement[] = [];
  for (const bytes of thin(binarySplits(least, most), (right - LEFT) / 80)) {
    parts.push(svg("line", { class: "grid", x1: x(bytes), x2: x(bytes), y1: TOP, y2: bottom }));
    parts.push(svg("text", { x: x(bytes), y: bottom + 18, "text-anchor": "middle" }, format.bytes(bytes)));
  }
  const times = decimalSplits(fastest, slowest);
  const texts = format.axisTimes(times);
  times.forEach((us, index) => {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: right, y1: y(us), y2: y(us) }));
    parts.push(svg("text", { x: LEFT - 8, y: y(us) + 4, "text-anchor": "end" }, texts[index]));
  });
  if (budget >= least && budget <= most) {
    parts.push(svg("line", { class: "budget", x1: x(budget), x2: x(budget), y1: TOP - 6, y2: bottom }));
    const end = x(budget) > width / 2;
    const place = { x: x(budget) + (end ? -6 : 6), y: TOP - 8, "text-anchor": end ? "end" : "start" };
    parts.push(svg("text", { class: "budget-text", ...place }, `budget ${format.bytes(budget)}`));
  }
  // Between two points the one with less memory is the fastest; left of the first there is none.
  const path = points
    .map(({ bytes, us }, at) => `${at === 0 ? `M${x(bytes)} ${TOP}` : `H${x(bytes)}`}V${y(us)}`)
    .join("");
  parts.push(svg("path", { class: "front-line", d: `${path}H${right}` }));
  const plan = svg("path", {
    class: "front-plan",
    d: `M${x(fit.peak.high)} ${y(fit.step_us) - 9}l9 9l-9 9l-9 -9z`,
  });
  points.forEach((point, index) => {
    const label = `${format.bytes(point.bytes)}, ${format.duration(point.us)} a step: ${format.clean(point.title, 400)}`;
    const mark = svg(
      "g",
      { class: "front-point", tabindex: 0, role: "button", "aria-label": label },
      svg("circle", { class: "hit", cx: x(point.bytes), cy: y(point.us), r: 14 }),
      svg("circle", { class: "dot", cx: x(point.bytes), cy: y(point.us), r: 5 }),
      svg("title", {}, label),
    );
    for (const type of ["mouseenter", "focus", "click"]) mark.addEventListener(type, () => choose(index));
    parts.push(mark);
  });
  return svg(
    "svg",
    {
      width,
      height: HEIGHT,
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "group",
      "aria-label": "Time of a step by budget",
    },
    svg("path", { class: "axis", d: `M${LEFT} ${TOP}V${bottom}H${right}` }),
    ...parts.slice(0, -points.length),
    plan,
    ...parts.slice(-points.length),
  );
}

/** At most `most` of the values, evenly. */
function thin(values: number[], most: number): number[] {
  const every = Math.max(1, Math.ceil(values.length / Math.max(1, most)));
  return values.filter((_, index) => index % every === 0);
}

/** About five values, multiples of one, two or five times a power of ten. */
export function decimalSplits(low: number, high: number): number[] {
  const rough = (high - low) / 5;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((times) => times * power >= rough) ?? 10) * power;
  const splits: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high && splits.length < 20; at += step) splits.push(at);
  return splits;
}
