/** Memory through a step, as it is and as planned, one above the other on the same scales. */

import type uPlot from "uplot";
import { mounted } from "../chart.js";
import { nearest } from "../columns.js";
import { button, choice, h } from "../dom.js";
import * as format from "../format.js";
import { Signal } from "../signal.js";
import { type Span, within, zoomed } from "../span.js";
import { legendItem, legendMark, swatch } from "../views/legend.js";
import { part, type Part } from "../views/section.js";
import { type Axis, columns, type Frame, makePlot, xs } from "./chart.js";
import { type Fit, phaseText } from "./data.js";
import { holdersTable } from "./holders.js";
import { Memory } from "./memory.js";

const HEIGHT = 250;
/** A budget of so many times what is needed is not shown: there would be nothing else to see. */
const FAR = 1.7;

export type Which = "baseline" | "planned";

/** A moment of one of the timelines. */
export interface Picked {
  which: Which;
  point: number;
}

export class Timelines {
  readonly #memories: Partial<Record<Which, Memory>> = {};
  readonly picked: Signal<Picked>;
  readonly #charts: Chart[] = [];
  readonly #top: number;
  #axis: Axis;
  #whole = false;

  constructor(
    readonly fit: Fit,
    private readonly announce: (text: string) => void,
  ) {
    const timelines = fit.timelines;
    if (timelines && timelines.baseline.at.length > 1) this.#memories.baseline = new Memory(timelines.baseline);
    if (timelines?.planned && timelines.planned.at.length > 1) this.#memories.planned = new Memory(timelines.planned);
    const all = Object.values(this.#memories);
    const most = Math.max(1, ...all.flatMap((memory) => [...memory.timeline.reserved])) + fit.context_bytes;
    this.#top = (fit.budget_bytes < most * FAR ? Math.max(most, fit.budget_bytes) : most) * 1.06;
    this.#axis = all.every((memory) => memory.hasTimes) ? "time" : "events";
    const which: Which = this.#memories.planned ? "planned" : "baseline";
    this.picked = new Signal({ which, point: this.#memories[which]?.peakPoint ?? 0 });
  }

  memory(which: Which): Memory | null {
    return this.#memories[which] ?? null;
  }

  /** Picks the moment of a phase at which most is allocated. */
  pick(which: Which, event: number): void {
    const memory = this.memory(which);
    if (memory) this.#pick({ which, point: memory.pointAt(event) });
  }

  part(): Part {
    const title = "Memory through a step";
    const shown = (["baseline", "planned"] as const).filter((which) => this.memory(which));
    if (shown.length === 0) {
      const text = "Memory through time was not kept with this plan: gpuheap fit --html keeps it";
      return part("timeline", "Timeline", title, h("p", {}, text));
    }
    for (const which of shown) this.#charts.push(new Chart(this, which, this.#top, this.announce));
    const times = shown.every((which) => this.memory(which)?.hasTimes);
    const axis = choice<Axis>(
      "Axis",
      [
        { value: "time", text: "Time" },
        { value: "events", text: "Events" },
      ],
      this.#axis,
      (chosen) => {
        this.#axis = chosen;
        this.#show();
      },
    );
    const span = choice(
      "Show",
      [
        { value: "step", text: "The step" },
        { value: "all", text: "All that was traced" },
      ],
      "step",
      (chosen) => {
        this.#whole = chosen === "all";
        this.#show();
      },
    );
    const tools = h(
      "div",
      { class: "tools" },
      times ? axis.element : null,
      span.element,
      h("span", { class: "faint" }, "Drag to zoom, double click for all, click for a moment"),
    );
    this.#show();
    return part(
      "timeline",
      "Timeline",
      title,
      tools,
      ...this.#charts.map(({ element }) => element),
      this.#legend(shown),
      this.#repeats(),
      this.#moment(),
    );
  }

  #show(): void {
    const wholes = this.#charts.map(({ which }) => this.#wholeOf(which));
    // What takes as long is as wide: the longest step gives the scale.
    const longest = Math.max(...wholes.map(({ low, high }) => high - low));
    this.#charts.forEach((chart, index) => {
      const { low, high } = wholes[index];
      if (this.#axis === "time") chart.setWhole("time", low, { low: 0, high: longest });
      else chart.setWhole("events", 0, { low, high });
    });
  }

  #wholeOf(which: Which): Span {
    const memory = this.#memories[which] as Memory;
    const x = xs(memory, this.#axis, 0);
    const [low, high] = this.#whole ? [x[0], x[x.length - 1]] : memory.step[this.#axis === "time" ? "times" : "events"];
    return { low, high: Math.max(high, low + 1) };
  }

  #pick(picked: Picked): void {
    this.picked.set(picked);
    const memory = this.memory(picked.which);
    if (memory) this.announce(this.#sentence(memory, picked.point));
  }

  pickPoint(which: Which, point: number): void {
    this.#pick({ which, point });
  }

  #sentence(memory: Memory, point: number): string {
    const phase = memory.phaseAt(point);
    const where = phase ? `${format.capitalized(phaseText(phase))}: ` : "";
    const reserved = memory.timeline.reserved[point];
    return `${where}${format.bytes(memory.allocated[point])} allocated of ${format.bytes(reserved)} reserved`;
  }

  #legend(shown: readonly Which[]): HTMLElement {
    const list = h("ul", { class: "legend" });
    const titles = new Map<string, string>();
    for (const which of shown) for (const { name, title } of this.memory(which)?.layers ?? []) titles.set(name, title);
    const fill = ({ which, point }: Picked) => {
      const memory = this.memory(which);
      const bytes = (name: string) => memory?.layers.find((layer) => layer.name === name)?.bytes[point] ?? 0;
      const number = (amount: number, more = "") => h("span", { class: "number" }, format.bytes(amount) + more);
      const items = [...titles].reverse().map(([name, title]) => legendItem(name, title, number(bytes(name))));
      items.push(legendItem("context", "context and libraries", number(this.fit.context_bytes)));
      items.push(
        legendMark("reserved", "reserved", number((memory?.timeline.reserved[point] ?? 0) + this.fit.context_bytes)),
      );
      const far = this.fit.budget_bytes > this.#top ? ", above the chart" : "";
      items.push(legendMark("limit", "budget", number(this.fit.budget_bytes, far)));
      items.push(h("li", {}, h("span", { class: "triangle", "aria-hidden": "true" }, "▼"), "the moment that binds"));
      list.replaceChildren(...items);
    };
    this.picked.on(fill);
    fill(this.picked.value);
    return list;
  }

  /** Under accumulation the trace has the passes of one part of the batch, which stand for all. */
  #repeats(): HTMLElement | null {
    const factor = this.fit.plan.find((planned) => planned.lever === "accumulate")?.factor ?? 0;
    if (factor < 3 || !this.memory("planned")) return null;
    const text = `Of the ${factor} micro-batches the first two are shown: the second stands for all others, and is as long`;
    return h("p", { class: "faint" }, text);
  }

  /** What is there at the picked moment, and who holds memory when its phase comes to its most. */
  #moment(): HTMLElement {
    const element = h("div", { class: "detail" });
    const fill = ({ which, point }: Picked) => {
      const memory = this.memory(which);
      if (!memory) return;
      const phase = memory.phaseAt(point);
      const binds = point === memory.peakPoint;
      const module = memory.moduleAt(point);
      const name = shownName(which, this.memory("planned") !== null);
      const head = h(
        "p",
        {},
        h("strong", {}, binds ? `The moment that binds ${name}` : `The picked moment ${name}`),
        phase ? `: ${phaseText(phase)}` : "",
        module === "" ? "" : ", in ",
        module === "" ? null : h("code", {}, format.clean(module, 200)),
        `. ${format.bytes(memory.allocated[point])} allocated of ${format.bytes(memory.timeline.reserved[point])} reserved`,
      );
      const peak = which === "planned" ? this.fit.peak : this.fit.baseline;
      const holders = binds && peak.holders.length > 0 ? peak.holders : (phase?.holders ?? []);
      const most = phase ? phase.allocated_bytes : peak.allocated_bytes;
      const caption = binds
        ? "Who holds memory then"
        : `Who holds memory when ${phase ? phaseText(phase) : "it"} comes to its most, ${format.bytes(most)}`;
      element.replaceChildren(
        head,
        holders.length > 0 ? holdersTable(caption, holders, binds ? peak.allocated_bytes : most) : "",
      );
    };
    this.picked.on(fill);
    fill(this.picked.value);
    return element;
  }
}

function shownName(which: Which, both: boolean): string {
  if (!both) return "";
  return which === "planned" ? "as planned" : "as it is";
}

class Chart {
  readonly element: HTMLElement;
  readonly #host = h("div", { class: "plot" });
  readonly #tip = h("div", { class: "tip timeline-tip", hidden: true });
  readonly #memory: Memory;
  readonly #mounted;
  #axis: Axis = "events";
  #origin = 0;
  #whole: Span = { low: 0, high: 1 };
  #span: Span = this.#whole;
  #xs: Float64Array = new Float64Array();

  constructor(
    private readonly all: Timelines,
    readonly which: Which,
    private readonly top: number,
    private readonly announce: (text: string) => void,
  ) {
    this.#memory = all.memory(which) as Memory;
    this.#mounted = mounted(this.#host, HEIGHT, (width) =>
      makePlot(
        this.#host,
        this.#memory,
        { context: all.fit.context_bytes, budget: all.fit.budget_bytes },
        { width, height: HEIGHT },
        () => this.#frame(),
        () => (all.picked.value.which === which ? all.picked.value.point : -1),
        {
          select: (low, high) => this.#show({ low, high }),
          cursor: (plot) => this.#read(plot),
        },
      ),
    );
    all.picked.on(() => this.#mounted.plot()?.redraw(false, false));
    const peak = which === "planned" ? all.fit.peak : all.fit.baseline;
    const title = all.memory("planned") ? (which === "planned" ? "As planned" : "As it is") : "As it is";
    const frame = h(
      "div",
      {
        class: "timeline",
        tabindex: 0,
        role: "group",
        "aria-roledescription": "chart",
        "aria-label":
          `Memory through a step ${title.toLowerCase()}: at most ${format.bytes(peak.allocated_bytes)} allocated, in ` +
          `${phaseText(peak)}. Arrow keys move, Enter picks the moment, p goes to the moment that binds, plus and minus zoom, 0 shows all`,
        onkeydown: (event) => this.#key(event as KeyboardEvent),
      },
      this.#host,
      this.#tip,
    );
    const zoom = (factor: number) => this.#show(zoomed(this.#span, factor, (this.#span.low + this.#span.high) / 2));
    const name = title.toLowerCase();
    this.element = h(
      "div",
      { class: "one-timeline" },
      h(
        "div",
        { class: "tools" },
        h("h3", {}, title),
        h("span", { class: "faint" }, `${format.bytes(peak.device_bytes)}, ${format.duration(peak.step_us)} a step`),
        h(
          "span",
          { class: "group" },
          button("−", () => zoom(2), { "aria-label": `Zoom out, ${name}`, title: "Zoom out" }),
          button("+", () => zoom(0.5), { "aria-label": `Zoom in, ${name}`, title: "Zoom in" }),
        ),
      ),
      frame,
    );
    this.#pointer();
  }

  /** Another axis, or another part of it to begin with. */
  setWhole(axis: Axis, origin: number, whole: Span): void {
    this.#axis = axis;
    this.#origin = origin;
    this.#whole = whole;
    this.#span = whole;
    this.#xs = xs(this.#memory, axis, origin);
    const plot = this.#mounted.plot();
    plot?.setData(columns(this.#memory, this.#xs, this.all.fit.context_bytes), false);
    plot?.setScale("x", { min: whole.low, max: whole.high });
  }

  #frame(): Frame {
    return { axis: this.#axis, origin: this.#origin, low: this.#span.low, high: this.#span.high, top: this.top };
  }

  #show(wanted: Span): void {
    const least =
      this.#axis === "events"
        ? Math.min(8, this.#whole.high - this.#whole.low)
        : (this.#whole.high - this.#whole.low) / 1e4;
    this.#span = within(wanted, this.#whole, least);
    this.#mounted.plot()?.setScale("x", { min: this.#span.low, max: this.#span.high });
  }

  #read(plot: uPlot): void {
    const { idx, left } = plot.cursor;
    const out = idx == null || left == null || left < 0;
    this.#tip.hidden = out;
    if (out) return;
    this.#tip.replaceChildren(...this.#readout(idx));
    const start = plot.over.offsetLeft + left;
    // As wide as it wants to be first, then beside the pointer, but never beyond the chart.
    this.#tip.style.left = "0";
    const { offsetWidth: wide } = this.#tip;
    const beside = left > plot.over.clientWidth / 2 ? start - 14 - wide : start + 14;
    this.#tip.style.left = `${Math.max(0, Math.min(beside, this.#host.clientWidth - wide))}px`;
  }

  #readout(point: number): HTMLElement[] {
    const memory = this.#memory;
    const phase = memory.phaseAt(point);
    const module = format.clean(memory.moduleAt(point), 80);
    const when = memory.hasTimes
      ? `${format.duration(memory.times[point] - (this.#axis === "time" ? this.#origin : memory.step.times[0]))}, `
      : "";
    const event = `event ${format.count(memory.timeline.at[point])}`;
    const rows = [...memory.layers]
      .reverse()
      .flatMap(({ name, title, bytes }) =>
        bytes[point] > 0
          ? [swatch(name), h("span", {}, title), h("span", { class: "number" }, format.bytes(bytes[point]))]
          : [],
      );
    const device = memory.timeline.reserved[point] + this.all.fit.context_bytes;
    return [
      h("div", { class: "faint" }, `${when}${event}`),
      h(
        "div",
        {},
        phase ? phaseText(phase) : "",
        module === "" ? "" : ", in ",
        module === "" ? null : h("code", {}, module),
      ),
      h("div", { class: "tip-classes" }, ...rows),
      h("div", { class: "tip-change" }, `${format.bytes(memory.allocated[point])} allocated`),
      h(
        "div",
        {},
        `${format.bytes(device)} of the device, ${format.share(device, this.all.fit.budget_bytes)} of the budget`,
      ),
    ];
  }

  #pointer(): void {
    let pressed = 0;
    this.#host.addEventListener("mousedown", (event) => (pressed = event.clientX), true);
    this.#host.addEventListener("click", (event) => {
      const index = this.#mounted.plot()?.cursor.idx;
      if (Math.abs(event.clientX - pressed) < 5 && index != null) this.all.pickPoint(this.which, index);
    });
    this.#host.addEventListener("dblclick", () => this.#show(this.#whole));
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== event.currentTarget) return;
    const plot = this.#mounted.plot();
    if (!plot) return;
    const x = this.#xs;
    const index = plot.cursor.idx;
    const { low, high } = this.#span;
    const middle = index == null ? (low + high) / 2 : x[index];
    if (event.key === "+" || event.key === "=") this.#show(zoomed(this.#span, 0.5, middle));
    else if (event.key === "-") this.#show(zoomed(this.#span, 2, middle));
    else if (event.key === "0") this.#show(this.#whole);
    else if ((event.key === "Enter" || event.key === " ") && index != null) this.all.pickPoint(this.which, index);
    else if (event.key === "p") {
      this.#move(this.#memory.peakPoint);
      this.all.pickPoint(this.which, this.#memory.peakPoint);
    } else if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const side = event.key === "ArrowLeft" ? -1 : 1;
      const own = this.all.picked.value;
      const begin = own.which === this.which ? own.point : nearest(x, middle);
      this.#move(index == null ? begin : index + side * (event.shiftKey ? 20 : 1));
    } else return;
    event.preventDefault();
  }

  /** Moves the cursor to a point, and the span after it. */
  #move(wanted: number): void {
    const plot = this.#mounted.plot();
    const x = this.#xs;
    const point = Math.max(0, Math.min(x.length - 1, wanted));
    if (!plot) return;
    const { low, high } = this.#span;
    if (x[point] < low || x[point] > high) {
      const half = (high - low) / 2;
      this.#show({ low: x[point] - half, high: x[point] + half });
    }
    plot.setCursor({ left: plot.valToPos(x[point], "x"), top: 10 });
    const memory = this.#memory;
    const phase = memory.phaseAt(point);
    this.announce(`${phase ? phaseText(phase) : ""}: ${format.bytes(memory.allocated[point])} allocated`);
  }
}
