/**
 * What the page is made of: `gpuheap.page/1`, as `gpuheap-explain` writes it (`crates/gpuheap-explain/src/views`).
 *
 * Sizes are bytes, times microseconds. A tick is a moment between two events: tick 0 is before the first event, tick n
 * directly after event n - 1. Columns of one table have the same length. A column whose name ends in `_delta` holds
 * the difference from the row before (the first from 0).
 */

import type { Report } from "./report.js";

export interface Page {
  schema: "gpuheap.page/1";
  /** The program that wrote it: `gpuheap 0.1.0`. */
  generator: string;
  /** The report, as `gpuheap explain --json` prints it. */
  report: Report;
  /** Every class; its index is the `class` elsewhere. The last one is "rounding". */
  classes: { name: string; title: string }[];
  /** Every rule by which a block can be classed; its index is the `rule` elsewhere. */
  rules: { class: number; text: string }[];
  places: Places;
  lanes: Lane[];
  sites: Site[];
  /** The end of each step. */
  steps: { ticks_delta: number[] };
  /** The moments with a name, in the order of their ticks. */
  moments: { name: MomentName; tick: number }[];
  /** Microseconds of Unix time of the first event; 0 where the recording has no times. */
  start_us: number;
  timeline: Timeline;
  memory: Memory;
  whatif: WhatIfCurve[];
  /** What is fetched from the server that sent the page; null in a file. */
  served: { recording: string } | null;
}

export type MomentName = "peak" | "peak_reserved" | "oom" | "end";

/** Places in the program, as a tree: every place is a frame called from another place. */
export interface Places {
  strings: string[];
  frames: {
    /** Index into `strings`. */
    function: number[];
    /** Index into `strings`; 0 (the empty string) where it is not known. */
    file: number[];
    /** From 1; 0 where it is not known. */
    line: number[];
    /** 0: a library's, 1: the user's own, 2: not a frame but a label, such as "backward pass". */
    kind: number[];
  };
  /** Place 0 is the root, "everything". A caller's index is smaller than the index of what it calls. */
  tree: {
    caller: number[];
    frame: number[];
    /** Index into `sites`; -1 for callers that hold nothing. */ site: number[];
  };
}

/** Memory of one pool, kind and stream: what must be the same for a free block to serve a request. */
export interface Lane {
  /** `default`, or `private pool (1, 0)`. */
  pool: string;
  /** `default stream`, or `stream 0x…`. */
  stream: string;
  /** `small` (requests up to 1 MiB) or `large`. */
  kind: string;
}

/** A line of the program, or what stands for one where no frames were recorded. */
export interface Site {
  file: string;
  line: number;
  function: string;
  /** What to show where there is no file: `backward pass started at train.py:16`. */
  label: string;
  /** The class that most of its bytes have. */
  class: number;
  /** Bytes at each of `moments`. */
  at: number[];
  /** The most bytes that it ever held, and when. */
  most: number;
  most_tick: number;
  /** Blocks that it made. */
  count: number;
  /** Bytes of all of them together. */
  total: number;
  /** Median microseconds from a block's birth to its death, over those that died; null if none did or without times. */
  lifetime_us: number | null;
  /** The same in events. */
  lifetime_events: number | null;
  /** Blocks that never died. */
  kept: number;
  /** Bytes by which it grows each step; null where there are too few steps. */
  growth: number | null;
}

/** Memory through time: exact values at some ticks, chosen so that no peak or valley is lost, denser where it matters. */
export interface Timeline {
  ticks_delta: number[];
  /** Microseconds since `start_us`; empty where the recording has no times. */
  time_delta: number[];
  reserved_delta: number[];
  /** One column a class, by its index: what was asked for, and the rounding. They add up to the allocated bytes. */
  classes_delta: number[][];
}

/** Blocks and segments with their lives: all of them, the most important, or those of one moment. */
export interface Memory {
  /** Whether nothing was left out. Else what was left out is what the timeline has more. */
  complete: boolean;
  /** Blocks in the recording (for a moment: at that moment), those left out included. */
  of_blocks: number;
  of_segments: number;
  /** Ticks at which every block and segment is there, whatever was left out. */
  exact_ticks: number[];
  blocks: {
    born_delta: number[];
    /** Ticks from birth to the free by the program; -1 if it never was. Held at t: born <= t and t < born + life. */
    life: number[];
    address_delta: number[];
    /** Index into `sorts`. */
    sort: number[];
    /** Blocks that waited for another stream after their free: row, and the tick when they could be used again (-1: never). */
    pending: [number, number][];
  };
  /** What blocks have in common. */
  sorts: { place: number[]; rule: number[]; requested: number[]; size: number[]; lane: number[] };
  segments: {
    born_delta: number[];
    /** Ticks; -1 if it never went back. */
    life: number[];
    address_delta: number[];
    size: number[];
    lane: number[];
    /** 1: part of an expandable range; neighbours of the same lane are one. */
    expandable: number[];
  };
}

/** Reserved memory through time under other settings. */
export interface WhatIfCurve {
  /** As in the environment variable; empty for stock settings. */
  conf: string;
  role: "recorded" | "given" | "tried" | "found";
  peak_reserved_bytes: number;
  peak_allocated_bytes: number;
  /** Whether it ran out of memory: the curve ends there. */
  oom: boolean;
  exact: boolean;
  best: boolean;
  ticks_delta: number[];
  reserved_delta: number[];
}
