/** The page as the views use it: columns summed, indices resolved, nothing derived that is not asked for. */

import { nearest, summed } from "./columns.js";
import { stackOrder } from "./classes.js";
import * as format from "./format.js";
import { Memory } from "./memory.js";
import type { Lane, Memory as MemoryData, MomentName, Page, Site, Timeline as TimelineData } from "./page.js";
import type { Report } from "./report.js";

export interface Timeline {
  ticks: Float64Array;
  /** Microseconds from the start; empty where the recording has no times. */
  times: Float64Array;
  reserved: Float64Array;
  /** One column a class. */
  classes: Float64Array[];
  allocated: Float64Array;
}

export const MOMENTS: Record<MomentName, { title: string; sentence: string; letter: string }> = {
  peak: { title: "Peak", sentence: "at the peak of allocated memory", letter: "P" },
  peak_reserved: { title: "Peak reserved", sentence: "at the peak of reserved memory", letter: "R" },
  oom: { title: "Out of memory", sentence: "when the allocation failed", letter: "!" },
  end: { title: "End", sentence: "at the end", letter: "E" },
};

export class Model {
  readonly report: Report;
  readonly classes: { name: string; title: string }[];
  /** Indices of the classes from the bottom of a stack to its top. */
  readonly order: number[];
  readonly rules: { class: number; text: string }[];
  readonly lanes: Lane[];
  readonly sites: Site[];
  readonly steps: Float64Array;
  readonly moments: { name: MomentName; tick: number }[];
  readonly timeline: Timeline;
  readonly memory: Memory;
  readonly tree: { caller: Int32Array; frame: Int32Array; site: Int32Array };
  readonly frames: Page["places"]["frames"];
  readonly strings: string[];
  /** The tick after the last event. */
  readonly last: number;

  constructor(readonly page: Page) {
    this.report = page.report;
    this.classes = page.classes;
    this.order = stackOrder(page.classes);
    this.rules = page.rules;
    this.lanes = page.lanes;
    this.sites = page.sites;
    this.steps = summed(page.steps.ticks_delta);
    this.moments = page.moments;
    this.timeline = timeline(page.timeline, page.classes.length);
    const { ticks } = this.timeline;
    this.last = Math.max(ticks[ticks.length - 1] ?? 0, ...page.moments.map((moment) => moment.tick));
    this.memory = this.memoryOf(page.memory);
    const { tree, frames, strings } = page.places;
    this.tree = {
      caller: Int32Array.from(tree.caller),
      frame: Int32Array.from(tree.frame),
      site: Int32Array.from(tree.site),
    };
    this.frames = frames;
    this.strings = strings;
  }

  memoryOf(data: MemoryData): Memory {
    return new Memory(
      data,
      this.rules.map((rule) => rule.class),
      this.last,
    );
  }

  get hasTimes(): boolean {
    return this.timeline.times.length > 0;
  }

  tickOf(name: MomentName): number | null {
    return this.moments.find((moment) => moment.name === name)?.tick ?? null;
  }

  /** The moment that is shown first: the one that the report is about. */
  firstTick(): number {
    const name = this.report.ledger_at.replace("-", "_") as MomentName;
    return this.tickOf(name) ?? this.tickOf("peak") ?? this.last;
  }

  /** Microseconds from the start at `tick`: exact at the timeline's ticks, in proportion between them. */
  timeAt(tick: number): number | null {
    const { ticks, times } = this.timeline;
    if (times.length === 0) return null;
    const right = Math.min(ticks.length - 1, Math.max(0, nearest(ticks, tick)));
    if (ticks[right] === tick) return times[right];
    const low = ticks[right] > tick ? right - 1 : right;
    if (low < 0) return times[0];
    if (low + 1 >= ticks.length) return times[low];
    const part = (tick - ticks[low]) / (ticks[low + 1] - ticks[low]);
    return times[low] + part * (times[low + 1] - times[low]);
  }

  framePlace(frame: number): { file: string; line: number; function: string } {
    const { function: name, file, line } = this.frames;
    const text = (index: number) => this.strings[index] ?? "";
    return { function: text(name[frame]), file: text(file[frame]), line: line[frame] ?? 0 };
  }

  frameText(frame: number, full = false): string {
    return format.place(this.framePlace(frame), full);
  }

  /** `train.py:16 in step`; what stands for a line where no frames were recorded. */
  siteText(site: number, full = false): string {
    const at = this.sites[site];
    if (!at) return "no frame recorded";
    return at.file === "" ? format.clean(at.label || at.function || "no frame recorded", 300) : format.place(at, full);
  }

  /** The frames of a place, innermost first. */
  stack(place: number): number[] {
    const frames: number[] = [];
    for (let at = place; at > 0 && frames.length < 10_000; at = this.tree.caller[at]) frames.push(this.tree.frame[at]);
    return frames;
  }

  laneText(lane: number): string {
    const at = this.lanes[lane];
    if (!at) return "unknown pool";
    const pool = at.pool === "default" ? "" : `, ${at.pool}`;
    return format.clean(`${at.kind}, ${at.stream}${pool}`, 200);
  }

  /** The name of a moment at `tick`, if it has one. */
  momentName(tick: number): MomentName | null {
    return this.moments.find((moment) => moment.tick === tick)?.name ?? null;
  }
}

export function timeline(data: TimelineData, classes: number): Timeline {
  const ticks = summed(data.ticks_delta);
  const columns = Array.from({ length: classes }, (_, index) => summed(data.classes_delta[index] ?? []));
  const allocated = new Float64Array(ticks.length);
  for (const column of columns) for (let row = 0; row < column.length; row++) allocated[row] += column[row];
  return {
    ticks,
    times: summed(data.time_delta),
    reserved: summed(data.reserved_delta),
    classes: columns,
    allocated,
  };
}
