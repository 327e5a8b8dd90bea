/** Memory through time. */

import type uPlot from "uplot";
import type { App } from "../app.js";
import { mounted } from "../chart.js";
import { after, from, nearest } from "../columns.js";
import { button, choice, h } from "../dom.js";
import * as format from "../format.js";
import type { Timeline } from "../model.js";
import { isWhole, panned, type Span, within, zoomed } from "../span.js";
import { legendItem, legendMark } from "./legend.js";
import { momentsTable } from "./moments.js";
import { part, type Part } from "./section.js";
import { eventText, readout } from "./timeline/change.js";
import { flags } from "./timeline/flags.js";
import { columns, type Drawn, plot as makePlot } from "./timeline/plot.js";
import { strip } from "./timeline/strip.js";

const HEIGHT = 320;
/** Fewer points of the overview than this in sight: finer ones are asked for. */
const COARSE = 400;
const DETAIL_POINTS = 1500;

type Axis = "time" | "events";

export function timelineView(app: App): Part {
  const { model } = app;
  const title = "Memory through time";
  if (model.timeline.ticks.length < 2) {
    return part("timeline", "Timeline", title, h("p", {}, "Nothing happened in this recording: it has no events"));
  }
  return new View(app).part(title);
}

/** What memory could not exceed, where that is known. */
export function limitOf(app: App): number | null {
  const { report } = app.model;
  if (report.oom && report.oom.limit_at_least_bytes > 0) return report.oom.limit_at_least_bytes;
  const parts = Object.values(report.ledgers).find((ledger) => ledger.some(({ kind }) => kind === "outside"));
  return parts ? parts.reduce((sum, one) => sum + one.bytes, 0) : null;
}

class View {
  readonly #host = h("div", { class: "plot" });
  readonly #tip = h("div", { class: "tip timeline-tip", hidden: true });
  readonly #limit: number | null;
  readonly #flags;
  readonly #strip;
  readonly #mounted;
  readonly #steps: Record<Axis, Float64Array>;
  #axis: Axis;
  #span: Span;
  #timeline: Timeline;
  #drawn: Drawn;
  /** Grows with every change of the span: a detail that arrives late is dropped. */
  #version = 0;

  constructor(private readonly app: App) {
    const { model } = app;
    this.#limit = limitOf(app);
    this.#axis = model.hasTimes ? "time" : "events";
    this.#timeline = model.timeline;
    this.#steps = { events: model.steps, time: model.steps.map((tick) => model.timeAt(tick) ?? 0) };
    this.#span = this.#whole();
    this.#drawn = this.#draw();
    this.#flags = flags(app);
    this.#strip = strip(
      model,
      () => this.#xs(model.timeline),
      () => this.#whole(),
      (span) => this.#show(span),
    );
    this.#mounted = mounted(this.#host, HEIGHT, (width) => this.#make(width));
    app.moment.on(() => this.#place());
    app.site.on(() => this.#refresh());
  }

  part(title: string): Part {
    const { app } = this;
    const frame = h(
      "div",
      {
        class: "timeline",
        tabindex: 0,
        role: "group",
        "aria-roledescription": "chart",
        "aria-label": `${this.#sentence()}. Arrow keys move, Enter picks the moment, plus and minus zoom, 0 shows all`,
        onkeydown: (event) => this.#key(event as KeyboardEvent),
      },
      this.#host,
      this.#tip,
    );
    this.#pointer(frame);
    const axis = choice<Axis>(
      "Axis",
      [
        { value: "time", text: "Time" },
        { value: "events", text: "Events" },
      ],
      this.#axis,
      (chosen) => this.#setAxis(chosen),
    );
    const zoom = (factor: number) => this.#zoom(factor, (this.#span.low + this.#span.high) / 2);
    const tools = h(
      "div",
      { class: "tools" },
      app.model.hasTimes ? axis.element : null,
      h(
        "span",
        { class: "group" },
        button("−", () => zoom(2), { "aria-label": "Zoom out", title: "Zoom out" }),
        button("+", () => zoom(0.5), { "aria-label": "Zoom in", title: "Zoom in" }),
        button("Show all", () => this.#show(this.#whole())),
      ),
      h("span", { class: "faint" }, "Drag to zoom, click to pick a moment"),
    );
    return part("timeline", "Timeline", title, tools, frame, this.#strip.element, this.#legend(), momentsTable(app));
  }

  #sentence(): string {
    const { report } = this.app.model;
    const bytes = format.bytes;
    return (
      `Memory through time: at most ${bytes(report.peaks.allocated_bytes)} allocated and ` +
      `${bytes(report.peaks.reserved_bytes)} reserved, ${bytes(report.end.allocated_bytes)} allocated at the end`
    );
  }

  #legend(): HTMLElement {
    const { app } = this;
    const list = h("ul", { class: "legend" });
    const fill = () => {
      const { classes, reserved } = app.moment.value;
      const items = [...app.model.order].reverse().flatMap((index) => {
        const { name, title } = app.model.classes[index];
        const ever = app.model.timeline.classes[index].some((bytes) => bytes > 0);
        return ever ? [legendItem(name, title, h("span", { class: "number" }, format.bytes(classes[index])))] : [];
      });
      items.push(legendMark("reserved", "reserved", h("span", { class: "number" }, format.bytes(reserved))));
      if (this.#limit !== null)
        items.push(legendMark("limit", "limit", h("span", { class: "number" }, format.bytes(this.#limit))));
      if (app.site.value >= 0) {
        const partly = app.model.memory.complete ? "" : " (blocks in this file)";
        items.push(legendMark("site", `${app.model.siteText(app.site.value)}${partly}`));
      }
      if (app.model.steps.length > 0) items.push(legendMark("step", "end of a step"));
      list.replaceChildren(...items);
    };
    app.moment.on(fill);
    app.site.on(fill);
    fill();
    return list;
  }

  #xs(timeline: Timeline): Float64Array {
    return this.#axis === "time" ? timeline.times : timeline.ticks;
  }

  #whole(): Span {
    const xs = this.#xs(this.app.model.timeline);
    const low = xs[0];
    return { low, high: Math.max(xs[xs.length - 1], low + 1) };
  }

  #xOf = (tick: number): number => (this.#axis === "time" ? (this.app.model.timeAt(tick) ?? 0) : tick);

  #tickAt(x: number): number {
    if (this.#axis === "events") return x;
    const { timeline } = this.app.model;
    const at = nearest(timeline.times, x);
    return timeline.ticks[at] ?? 0;
  }

  #draw(): Drawn {
    const { model, site } = this.app;
    const wanted =
      site.value < 0 ? null : model.memory.sorts.place.map((place) => Number(model.tree.site[place] === site.value));
    const line = wanted ? model.memory.through(this.#timeline.ticks, Uint8Array.from(wanted)) : null;
    return { timeline: this.#timeline, xs: this.#xs(this.#timeline), site: line };
  }

  #make(width: number): uPlot {
    const made = makePlot(
      this.app.model,
      this.#host,
      { width, height: HEIGHT },
      columns(this.app.model, this.#drawn, this.#limit),
      () => this.#span,
      (splits) => (this.#axis === "time" ? format.axisTimes(splits) : splits.map(format.count)),
      () => this.#steps[this.#axis],
      {
        select: (low, high) => this.#show({ low, high }),
        cursor: (plot) => this.#read(plot),
        moved: (plot) => this.#flags.place(plot, this.#xOf),
      },
    );
    made.over.append(this.#flags.element);
    return made;
  }

  #refresh(): void {
    this.#drawn = this.#draw();
    const plot = this.#mounted.plot();
    plot?.setData(columns(this.app.model, this.#drawn, this.#limit), false);
    plot?.setScale("x", { min: this.#span.low, max: this.#span.high });
  }

  #place(): void {
    const plot = this.#mounted.plot();
    if (plot) this.#flags.place(plot, this.#xOf);
  }

  #setAxis(axis: Axis): void {
    const low = this.#tickAt(this.#span.low);
    const high = this.#tickAt(this.#span.high);
    const all = isWhole(this.#span, this.#whole());
    this.#axis = axis;
    this.#timeline = this.app.model.timeline;
    this.#drawn = this.#draw();
    this.#show(all ? this.#whole() : { low: this.#xOf(low), high: this.#xOf(high) }, true);
    this.#strip.refresh();
  }

  #zoom(factor: number, fixed: number): void {
    this.#show(zoomed(this.#span, factor, fixed));
  }

  #show(wanted: Span, always = false): void {
    const whole = this.#whole();
    const least = this.#axis === "events" ? Math.min(8, whole.high) : (whole.high - whole.low) / 1e6;
    const span = within(wanted, whole, least);
    if (!always && span.low === this.#span.low && span.high === this.#span.high) return;
    this.#span = span;
    this.#strip.show(span);
    this.#version += 1;
    const { timeline } = this.app.model;
    const xs = this.#xs(timeline);
    const inSight = nearest(xs, span.high) - nearest(xs, span.low);
    if (inSight >= COARSE || isWhole(span, whole)) {
      this.#timeline = timeline;
      this.#refresh();
      return;
    }
    const detail = this.#detail(span);
    if (!(detail instanceof Promise)) {
      this.#timeline = detail ?? timeline;
      this.#refresh();
      return;
    }
    // What is shown may end within the new span: the overview has something everywhere.
    const known = this.#drawn.xs;
    if (known[0] > span.low || known[known.length - 1] < span.high) this.#timeline = timeline;
    this.#refresh();
    const version = this.#version;
    detail.then(
      (finer) => {
        if (!finer || version !== this.#version || finer.ticks.length === 0) return;
        this.#timeline = finer;
        this.#refresh();
      },
      () => this.app.announce("The server does not answer: only the overview is shown"),
    );
  }

  /** Finer points of the span and of half its length on either side. */
  #detail({ low, high }: Span): Timeline | null | Promise<Timeline | null> {
    const around = (high - low) / 2;
    const { timeline } = this.app.model;
    if (this.#axis === "events") return this.app.source.detail(low - around, high + around, DETAIL_POINTS);
    // Only the overview's points have times of their own: the range goes from one to one.
    const first = timeline.ticks[Math.max(0, after(timeline.times, low - around) - 1)];
    const last = timeline.ticks[Math.min(timeline.ticks.length - 1, from(timeline.times, high + around))];
    return this.app.source.detail(first, last, DETAIL_POINTS);
  }

  #read(plot: uPlot): void {
    const { idx, left } = plot.cursor;
    const out = idx == null || left == null || left < 0;
    this.#tip.hidden = out;
    if (out) return;
    const { timeline, site } = this.#drawn;
    const line = site ? { text: this.app.model.siteText(this.app.site.value), bytes: site[idx] } : null;
    this.#tip.replaceChildren(...readout(this.app.model, timeline, idx, line));
    const toLeft = left > plot.over.clientWidth / 2;
    const start = plot.over.offsetLeft + left;
    // As wide as it wants to be first, then beside the pointer, but never beyond the chart.
    this.#tip.style.left = "0";
    const { offsetWidth: wide } = this.#tip;
    const beside = toLeft ? start - 14 - wide : start + 14;
    this.#tip.style.left = `${Math.max(0, Math.min(beside, this.#host.clientWidth - wide))}px`;
  }

  #pick(): void {
    const index = this.#mounted.plot()?.cursor.idx;
    if (index != null) void this.app.pick(this.#drawn.timeline.ticks[index]);
  }

  #pointer(frame: HTMLElement): void {
    let pressed = 0;
    this.#host.addEventListener(
      "mousedown",
      (event) => {
        pressed = event.clientX;
        if (!event.shiftKey || event.button !== 0) return;
        // Shift and drag pans: the chart must not take it for a selection.
        event.stopPropagation();
        event.preventDefault();
        const before = this.#span;
        const width = this.#mounted.plot()?.over.clientWidth ?? 1;
        const move = (at: MouseEvent) =>
          this.#show(panned(before, ((event.clientX - at.clientX) / width) * (before.high - before.low)));
        const end = () => removeEventListener("mousemove", move);
        addEventListener("mousemove", move);
        addEventListener("mouseup", end, { once: true });
      },
      true,
    );
    this.#host.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) < 5 && !event.shiftKey) this.#pick();
    });
    this.#host.addEventListener("dblclick", () => this.#show(this.#whole()));
    frame.addEventListener(
      "wheel",
      (event) => {
        // Without a click first the wheel scrolls the page.
        const plot = this.#mounted.plot();
        if (!plot || !(event.ctrlKey || event.metaKey || frame.contains(document.activeElement))) return;
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          this.#show(panned(this.#span, (event.deltaX / plot.over.clientWidth) * (this.#span.high - this.#span.low)));
          return;
        }
        const left = event.clientX - plot.over.getBoundingClientRect().left;
        this.#zoom(event.deltaY > 0 ? 1.25 : 0.8, plot.posToVal(left, "x"));
      },
      { passive: false },
    );
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== event.currentTarget) return;
    const { low, high } = this.#span;
    const index = this.#mounted.plot()?.cursor.idx;
    const middle = index == null ? (low + high) / 2 : this.#drawn.xs[index];
    const side = event.key === "ArrowLeft" ? -1 : 1;
    if (event.key === "+" || event.key === "=") this.#zoom(0.5, middle);
    else if (event.key === "-") this.#zoom(2, middle);
    else if (event.key === "0") this.#show(this.#whole());
    else if (event.key === "Enter" || event.key === " ") this.#pick();
    else if (event.key === "Escape") this.#mounted.plot()?.setCursor({ left: -10, top: -10 });
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (event.shiftKey) this.#show(panned(this.#span, (side * (high - low)) / 4));
      else this.#move(side);
    } else return;
    event.preventDefault();
  }

  /** Moves the cursor to the next point, and the span after it. */
  #move(side: number): void {
    const plot = this.#mounted.plot();
    if (!plot) return;
    const { xs, timeline } = this.#drawn;
    const { low, high } = this.#span;
    const now = plot.cursor.idx;
    let index: number;
    if (now == null || xs[now] < low || xs[now] > high) {
      // From the picked moment, or from the middle where that is out of sight.
      const picked = this.#xOf(this.app.moment.value.tick);
      index = nearest(xs, picked >= low && picked <= high ? picked : (low + high) / 2);
    } else index = Math.min(xs.length - 1, Math.max(0, now + side));
    const length = high - low;
    const x = xs[index];
    const allocated = timeline.allocated[index];
    if (x < low || x > high) this.#show({ low: x - length / 2, high: x + length / 2 });
    plot.setCursor({ left: plot.valToPos(x, "x"), top: 10 });
    const when = this.#axis === "time" ? format.duration(x) : format.capitalized(eventText(timeline.ticks[index]));
    this.app.announce(`${when}: ${format.bytes(allocated)} allocated`);
  }
}
