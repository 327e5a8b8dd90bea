/** Where moments and details come from: the blocks in the file, or the server that sent the page. */

import { nearest } from "./columns.js";
import type { Memory } from "./memory.js";
import type { Model, Timeline } from "./model.js";
import { timeline } from "./model.js";
import type { Memory as MemoryData, Timeline as TimelineData, WhatIfCurve } from "./page.js";
import { walk } from "./walk.js";

/** The memory at one moment. */
export interface Moment {
  tick: number;
  /** Microseconds from the start; null where the recording has no times. */
  time: number | null;
  allocated: number;
  reserved: number;
  /** Bytes a class; they add up to `allocated`. */
  classes: Float64Array;
  memory: Memory;
  /** Whether `memory` holds every block and segment of this moment. */
  exact: boolean;
}

export interface Source {
  /** The nearest tick that can be shown. */
  snap(tick: number): number;
  moment(tick: number): Promise<Moment>;
  /** Points between two ticks, finer than the overview's; null where there are none. */
  detail(begin: number, end: number, points: number): Timeline | null | Promise<Timeline | null>;
  whatif(): Promise<WhatIfCurve[]>;
}

export function sourceOf(model: Model): Source {
  return model.page.served ? new Served(model, model.page.served.recording) : new Embedded(model);
}

class Embedded implements Source {
  constructor(private readonly model: Model) {}

  snap(tick: number): number {
    const { memory, last, timeline } = this.model;
    const whole = Math.min(last, Math.max(0, Math.round(tick)));
    if (memory.isExact(whole)) return whole;
    const at = nearest(timeline.ticks, whole);
    return at < 0 ? whole : timeline.ticks[at];
  }

  async moment(wanted: number): Promise<Moment> {
    const { model } = this;
    const tick = this.snap(wanted);
    const { ticks, classes, reserved, allocated } = model.timeline;
    const at = nearest(ticks, tick);
    const base = { tick, time: model.timeAt(tick), memory: model.memory, exact: model.memory.isExact(tick) };
    if (at >= 0 && ticks[at] === tick) {
      const sums = Float64Array.from(classes, (column) => column[at]);
      return { ...base, allocated: allocated[at], reserved: reserved[at], classes: sums };
    }
    const totals = model.memory.totals(tick, model.classes.length);
    const asked = totals.classes.reduce((sum, bytes) => sum + bytes, 0);
    totals.classes[model.classes.length - 1] += totals.allocated - asked;
    return { ...base, allocated: totals.allocated, reserved: totals.reserved, classes: totals.classes };
  }

  detail(begin: number, end: number, points: number): Timeline | null {
    const { model } = this;
    if (!model.memory.complete || model.memory.length === 0) return null;
    const first = Math.max(0, Math.floor(begin));
    const last = Math.min(model.last, Math.ceil(end));
    return withTimes(model, walk(model.memory, first, last, points, model.classes.length));
  }

  async whatif(): Promise<WhatIfCurve[]> {
    return this.model.page.whatif;
  }
}

/** What-if is asked for again after this many milliseconds. */
const AGAIN = 1000;

class Served implements Source {
  readonly #base: string;

  constructor(
    private readonly model: Model,
    recording: string,
  ) {
    this.#base = `/api/recordings/${encodeURIComponent(recording)}`;
  }

  snap(tick: number): number {
    return Math.min(this.model.last, Math.max(0, Math.round(tick)));
  }

  async moment(wanted: number): Promise<Moment> {
    const tick = this.snap(wanted);
    const data = await this.#get<{ tick: number; reserved: number; classes: number[]; memory: MemoryData }>(
      `moment?tick=${tick}`,
    );
    const classes = Float64Array.from(data.classes);
    return {
      tick: data.tick,
      time: this.model.timeAt(data.tick),
      allocated: classes.reduce((sum, bytes) => sum + bytes, 0),
      reserved: data.reserved,
      classes,
      memory: this.model.memoryOf(data.memory),
      exact: true,
    };
  }

  async detail(begin: number, end: number, points: number): Promise<Timeline | null> {
    const range = `from=${Math.max(0, Math.floor(begin))}&to=${Math.min(this.model.last, Math.ceil(end))}`;
    const data = await this.#get<TimelineData>(`timeline?${range}&points=${points}`);
    const detail = timeline(data, this.model.classes.length);
    return detail.times.length > 0 ? detail : withTimes(this.model, detail);
  }

  async whatif(): Promise<WhatIfCurve[]> {
    for (;;) {
      const response = await fetch(`${this.#base}/whatif`);
      if (response.status !== 202) {
        if (!response.ok) throw new Error(`The server refused (${response.status})`);
        return ((await response.json()) as { curves: WhatIfCurve[] }).curves;
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN));
    }
  }

  async #get<T>(path: string): Promise<T> {
    const response = await fetch(`${this.#base}/${path}`);
    if (!response.ok) throw new Error(`The server refused (${response.status})`);
    return (await response.json()) as T;
  }
}

/** Blocks know ticks only: times between the overview's points are in proportion. */
function withTimes(model: Model, detail: Timeline): Timeline {
  if (!model.hasTimes) return detail;
  return { ...detail, times: Float64Array.from(detail.ticks, (tick) => model.timeAt(tick) ?? 0) };
}
