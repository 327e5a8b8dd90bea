/** Where each range of addresses is drawn: to scale, one after the other, long ones over several rows. */

import { bytes, counted } from "./format.js";
import type { Range } from "./ranges.js";

export interface Bar {
  range: number;
  /** Part of the range, in bytes from its start. */
  from: number;
  to: number;
  x: number;
  width: number;
}

export type Row = { title: string } | { bars: Bar[] };

export interface Group {
  title: string;
  /** Indices of ranges, in the order in which they are shown. */
  ranges: number[];
}

/** A range is never narrower than this. */
const LEAST_WIDTH = 3;
const GAP = 3;

export function rows(ranges: Range[], groups: Group[], bytesPerRow: number, width: number): Row[] {
  const result: Row[] = [];
  const scale = width / bytesPerRow;
  for (const group of groups) {
    if (group.title !== "") result.push({ title: group.title });
    let bars: Bar[] = [];
    let x = 0;
    const next = () => {
      if (bars.length > 0) result.push({ bars });
      bars = [];
      x = 0;
    };
    for (const index of group.ranges) {
      const { size } = ranges[index];
      const wanted = Math.max(LEAST_WIDTH, size * scale);
      // What does not fit behind the one before starts a row of its own.
      if (x > 0 && x + wanted > width) next();
      let from = 0;
      while (from < size) {
        const to = Math.min(size, from + bytesPerRow);
        const bar = {
          range: index,
          from,
          to,
          x,
          width: Math.min(width, Math.max(LEAST_WIDTH, (to - from) * scale)),
        };
        bars.push(bar);
        x += bar.width + GAP;
        from = to;
        if (from < size) next();
      }
    }
    next();
  }
  return result;
}

/** The ranges among `indices` as groups of one lane each, in the order of their first ones; or all as one group. */
export function groups(ranges: Range[], indices: number[], title: ((lane: number) => string) | null): Group[] {
  if (!title) return [{ title: "", ranges: indices }];
  const byLane = new Map<number, number[]>();
  for (const index of indices) {
    const list = byLane.get(ranges[index].lane);
    if (list) list.push(index);
    else byLane.set(ranges[index].lane, [index]);
  }
  return [...byLane].map(([lane, list]) => {
    const { reserved, free } = figures(list.map((index) => ranges[index]));
    return { title: `${title(lane)}: ${bytes(reserved)}, ${bytes(free)} free`, ranges: list };
  });
}

/** What the ranges are together. */
export function figures(ranges: Range[]) {
  const sums = { reserved: 0, free: 0, largest: 0, largestFree: 0, segments: 0 };
  for (const range of ranges) {
    sums.reserved += range.size;
    sums.free += range.free;
    sums.segments += range.segments;
    sums.largest = Math.max(sums.largest, range.size);
    sums.largestFree = Math.max(sums.largestFree, range.largestFree);
  }
  return sums;
}

/** The figures in a sentence. */
export function figuresText(ranges: Range[]): string {
  const { reserved, free, largestFree, segments } = figures(ranges);
  const merged = segments === ranges.length ? "" : ` in ${counted(ranges.length, "range")}`;
  return (
    `${counted(segments, "segment")}${merged}, ${bytes(reserved)} reserved; ` +
    `${bytes(free)} free, at most ${bytes(largestFree)} in one piece`
  );
}

/** Bytes a row so that everything takes about `wanted` rows: a power of two. */
export function rowBytes(total: number, largest: number, wanted: number): number {
  const least = Math.max(total / wanted, largest / (wanted * 2), 4096);
  return 2 ** Math.ceil(Math.log2(least));
}
