/** Where each range of addresses is drawn: to scale, one after the other, long ones over several rows. */

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
        const bar = { range: index, from, to, x, width: Math.min(width, Math.max(LEAST_WIDTH, (to - from) * scale)) };
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

/** Bytes a row so that everything takes about `wanted` rows: a power of two. */
export function rowBytes(total: number, largest: number, wanted: number): number {
  const least = Math.max(total / wanted, largest / (wanted * 2), 4096);
  return 2 ** Math.ceil(Math.log2(least));
}
