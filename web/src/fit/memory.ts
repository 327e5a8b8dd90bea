/** A timeline as a chart needs it: classes that look alike together, in the order in which they are stacked. */

import { after } from "../columns.js";
import { stackOrder } from "../classes.js";
import { classOf, type PhaseSpan, type Timeline } from "./data.js";

export interface Layer {
  name: string;
  title: string;
  bytes: Float64Array;
}

export class Memory {
  /** From the bottom of the stack to its top. */
  readonly layers: Layer[];
  readonly allocated: Float64Array;
  /** The points' times: those of equal time are spread over the time until the next one, so that each has its place. */
  readonly times: Float64Array;
  readonly events: Float64Array;
  readonly peakPoint: number;

  constructor(readonly timeline: Timeline) {
    const count = timeline.at.length;
    const layers = new Map<string, Layer>();
    this.allocated = new Float64Array(count);
    timeline.classes.forEach((name, column) => {
      const known = classOf(name);
      const layer = layers.get(known.name) ?? { ...known, bytes: new Float64Array(count) };
      layers.set(known.name, layer);
      for (let point = 0; point < count; point++) {
        const bytes = timeline.bytes[column][point] ?? 0;
        layer.bytes[point] += bytes;
        this.allocated[point] += bytes;
      }
    });
    const all = [...layers.values()];
    this.layers = stackOrder(all).map((index) => all[index]);
    this.events = Float64Array.from(timeline.at);
    this.times = spread(timeline.us);
    this.peakPoint = Math.max(0, after(this.events, timeline.peak) - 1);
  }

  get hasTimes(): boolean {
    return this.times.length > 1 && this.times[this.times.length - 1] > 0;
  }

  /** The last point that is no later than an event. */
  pointAt(event: number): number {
    return Math.max(0, after(this.events, event) - 1);
  }

  phaseAt(point: number): PhaseSpan | null {
    const at = this.timeline.at[point];
    return this.timeline.phases.find(({ start, end }) => start <= at && at < end) ?? null;
  }

  moduleAt(point: number): string {
    const module = this.timeline.module[point];
    return module === null || module === undefined ? "" : (this.timeline.modules[module] ?? "");
  }

  /** The step in which most is allocated, as a range of events and of times. */
  get step(): { number: number; events: [number, number]; times: [number, number] } {
    const { phases } = this.timeline;
    const number = this.phaseAt(this.peakPoint)?.step ?? phases[phases.length - 1]?.step ?? 0;
    const own = phases.filter(({ step }) => step === number);
    const [first, last] = [own[0], own[own.length - 1]];
    if (!first || !last) return { number, events: [0, this.timeline.events], times: [0, this.times.at(-1) ?? 0] };
    return { number, events: [first.start, last.end], times: [first.start_us, last.end_us] };
  }
}

function spread(us: readonly number[]): Float64Array {
  const times = Float64Array.from(us);
  for (let start = 0; start < us.length;) {
    let end = start;
    while (end < us.length && us[end] === us[start]) end += 1;
    const next = end < us.length ? us[end] : us[start];
    for (let at = start; at < end; at++) times[at] = us[start] + ((next - us[start]) * (at - start)) / (end - start);
    start = end;
  }
  return times;
}
