/** Exact points of a range, computed from blocks and segments whose lives are all known. */

import { after } from "./columns.js";
import type { Memory } from "./memory.js";
import { NEVER } from "./memory.js";
import type { Timeline } from "./model.js";

/**
 * At most about `points` ticks from `begin` to `end`: in each share of the range the highest and the lowest moment, so
 * that no peak is lost. `rounding` is the index of the class that holds what blocks are larger than what was asked for.
 */
export function walk(memory: Memory, begin: number, end: number, points: number, classes: number): Timeline {
  const rounding = classes - 1;
  const { requested, size } = memory.sorts;
  const start = memory.totals(begin, classes);
  const current = start.classes;
  let allocated = start.allocated;
  let reserved = start.reserved;
  let asked = current.reduce((sum, bytes) => sum + bytes, 0);
  const segments = segmentChanges(memory, begin, end);

  const ticks: number[] = [];
  const rows: Float64Array[] = [];
  const reservedAt: number[] = [];
  const emit = (point: Point) => {
    ticks.push(point.tick);
    rows.push(point.classes);
    reservedAt.push(point.reserved);
  };
  const now = (tick: number): Point => {
    const copy = current.slice();
    copy[rounding] += allocated - asked;
    return { tick, allocated, reserved, classes: copy };
  };

  const births = memory.born;
  const deaths = memory.byDeath();
  let birth = after(births, begin);
  let death = memory.firstDeath(begin + 1);
  let segment = 0;
  const width = Math.max(1, (end - begin) / Math.max(1, points / 2));
  const bucketOf = (tick: number) => Math.floor((tick - begin) / width);
  emit(now(begin));
  let bucket = -1;
  let high: Point | null = null;
  let low: Point | null = null;
  const flush = () => {
    const chosen = [high, low].filter((point): point is Point => point !== null);
    chosen.sort((a, b) => a.tick - b.tick);
    for (const point of chosen) if (point.tick > ticks[ticks.length - 1]) emit(point);
    high = low = null;
  };
  for (;;) {
    const nextBirth = birth < births.length ? births[birth] : NEVER;
    const nextDeath = death < deaths.length ? memory.freed[deaths[death]] : NEVER;
    const nextSegment = segment < segments.length ? segments[segment].tick : NEVER;
    const tick = Math.min(nextBirth, nextDeath, nextSegment);
    if (tick > end || tick === NEVER) break;
    const apply = (row: number, sign: number) => {
      const sort = memory.sort[row];
      current[memory.classOf[sort]] += sign * requested[sort];
      asked += sign * requested[sort];
      allocated += sign * size[sort];
    };
    while (birth < births.length && births[birth] === tick) apply(birth++, 1);
    while (death < deaths.length && memory.freed[deaths[death]] === tick) apply(deaths[death++], -1);
    while (segment < segments.length && segments[segment].tick === tick) reserved += segments[segment++].bytes;
    if (bucketOf(tick) !== bucket) {
      flush();
      bucket = bucketOf(tick);
    }
    const top = high as Point | null;
    if (!top || allocated > top.allocated || reserved > top.reserved) high = now(tick);
    const bottom = low as Point | null;
    if (!bottom || allocated <= bottom.allocated) low = now(tick);
  }
  flush();
  if (ticks[ticks.length - 1] < end) emit(now(end));
  return {
    ticks: Float64Array.from(ticks),
    times: new Float64Array(0),
    reserved: Float64Array.from(reservedAt),
    classes: Array.from({ length: classes }, (_, index) => Float64Array.from(rows, (row) => row[index])),
    allocated: Float64Array.from(rows, (row) => row.reduce((sum, bytes) => sum + bytes, 0)),
  };
}

interface Point {
  tick: number;
  allocated: number;
  reserved: number;
  classes: Float64Array;
}

function segmentChanges(memory: Memory, begin: number, end: number): { tick: number; bytes: number }[] {
  const { born, gone, size } = memory.segments;
  const changes: { tick: number; bytes: number }[] = [];
  for (let row = 0; row < born.length; row++) {
    if (born[row] > begin && born[row] <= end) changes.push({ tick: born[row], bytes: size[row] });
    if (gone[row] > begin && gone[row] <= end) changes.push({ tick: gone[row], bytes: -size[row] });
  }
  return changes.sort((a, b) => a.tick - b.tick);
}
