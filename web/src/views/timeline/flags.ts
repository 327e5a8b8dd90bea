/** Markers over the chart: the moments with a name, the findings that have a moment, and the picked moment. */

import type uPlot from "uplot";
import type { App } from "../../app.js";
import { button, h } from "../../dom.js";
import * as format from "../../format.js";
import { MOMENTS } from "../../model.js";
import { classColor } from "../../paint.js";

const SIZE = 20;

interface Flag {
  tick: number;
  element: HTMLElement;
  line: HTMLElement;
}

export interface Flags {
  element: HTMLElement;
  place(plot: uPlot, xOf: (tick: number) => number): void;
}

export function flags(app: App): Flags {
  const element = h("div", { class: "flags" });
  const list: Flag[] = [];
  const add = (tick: number, mark: string, title: string, kind: string) => {
    const line = h("div", { class: `flag-line ${kind}` });
    const flag = button(mark, () => void app.pick(tick), {
      class: `flag ${kind}`,
      title,
      "aria-label": `Pick: ${title}`,
    });
    // A press on a flag is not the start of a selection.
    for (const event of ["mousedown", "mouseup", "click"]) flag.addEventListener(event, (at) => at.stopPropagation());
    element.append(line, flag);
    list.push({ tick, element: flag, line });
  };
  for (const { name, tick } of app.model.moments) {
    if (MOMENTS[name]) add(tick, MOMENTS[name].letter, MOMENTS[name].title, name);
  }
  app.model.report.findings.forEach((finding, index) => {
    if (typeof finding.event !== "number") return;
    add(finding.event + 1, String(index + 1), `Finding ${index + 1}: ${format.clean(finding.title, 200)}`, "finding");
  });
  const picked = h("div", { class: "flag-line picked" });
  const stack = h("div", { class: "picked-stack" });
  element.append(picked, stack);
  return {
    element,
    place(plot, xOf) {
      const width = plot.over.clientWidth;
      const { min, max } = plot.scales.x;
      const position = (tick: number) => {
        const x = xOf(tick);
        return min == null || max == null || x < min || x > max ? null : plot.valToPos(x, "x");
      };
      const shown = list.map((flag) => ({ flag, at: position(flag.tick) })).sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
      // Flags that would cover each other stand below each other.
      const ends: number[] = [];
      for (const { flag, at } of shown) {
        flag.element.hidden = flag.line.hidden = at === null;
        if (at === null) continue;
        const left = Math.min(Math.max(0, at - SIZE / 2), Math.max(0, width - SIZE));
        let row = ends.findIndex((end) => left >= end + 2);
        if (row < 0) row = ends.length;
        ends[row] = left + SIZE;
        flag.element.style.transform = `translate(${left}px, ${2 + row * (SIZE + 2)}px)`;
        flag.line.style.transform = `translateX(${at}px)`;
      }
      const at = position(app.moment.value.tick);
      picked.hidden = stack.hidden = at === null;
      if (at === null) return;
      // A peak may be narrower than the line: below its top the line is what was held, in the colours of the classes.
      const { classes, allocated } = app.moment.value;
      const height = plot.over.clientHeight;
      const top = Math.min(height, Math.max(0, plot.valToPos(allocated, "y")));
      let sum = 0;
      const parts = app.model.order.flatMap((index) => {
        if (!(classes[index] > 0)) return [];
        const low = sum;
        sum += classes[index];
        const color = classColor(app.model.classes[index].name);
        return [`${color} ${(100 * low) / allocated}% ${(100 * sum) / allocated}%`];
      });
      picked.style.transform = stack.style.transform = `translateX(${at}px)`;
      picked.style.height = `${top}px`;
      stack.style.height = `${height - top}px`;
      stack.style.backgroundImage = parts.length > 0 ? `linear-gradient(to top, ${parts.join(", ")})` : "none";
    },
  };
}
