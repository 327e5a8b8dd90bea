/** Exact points of a range, computed from blocks and segments whose lives are all known. */

import { after } from "./columns.js";
import type { Memory } from "./memory.js";
import { NEVER } from "./memory.js";
import type { Timeline } from "./model.js";

/**
 * At most about `points` ticks from `begin` to `end`: in each share of the range the highest and the lowest moment, so
 * that no peak is lost. The last class is the rounding: what blocks are larger than what was asked for.
 */
export function walk(memory: Memory, begin: number, end: number, points: number, classes: number): Timeline {
  const chosen = extremes(memory, begin, end, points, classes);
  const columns = Array.from({ length: classes }, () => new Float64Array(chosen.length));
  const ticks = new Float64Array(chosen.length);
  const allocated = new Float64Array(chosen.length);
  const reserved = new Float64Array(chosen.length);
  const state = new State(memory, begin, classes);
  let row = 0;
  const emit = (tick: number) => {
    ticks[row] = tick;
    allocated[row] = state.allocated;
    reserved[row] = state.reserved;
    for (let index = 0; index < classes; index++) columns[index][row] = state.classes[index];
    columns[classes - 1][row] += state.allocated - state.asked;
    row += 1;
  };
  // What holds at a chosen tick is what the last change at or before it left.
  for (let tick = state.next(); row < chosen.length; tick = state.next()) {
    while (row < chosen.length && chosen[row] < tick) emit(chosen[row]);
    if (tick === NEVER) break;
    state.apply(tick);
  }
  return { ticks, times: new Float64Array(0), reserved, classes: columns, allocated };
}

/** The ticks that are shown, in their order. */
function extremes(memory: Memory, begin: number, end: number, points: number, classes: number): number[] {
  const state = new State(memory, begin, classes);
  const width = Math.max(1, (end - begin) / Math.max(1, points / 2));
  const chosen = [begin];
  let bucket = -1;
  let [high, highAt, highReserved, low, lowAt] = [-1, -1, -1, 0, -1];
  const add = (tick: number) => {
    if (tick > chosen[chosen.length - 1]) chosen.push(tick);
  };
  const flush = () => {
    if (highAt < 0) return;
    add(Math.min(highAt, lowAt));
    add(Math.max(highAt, lowAt));
  };
  for (let tick = state.next(); tick <= end && tick !== NEVER; tick = state.next()) {
    state.apply(tick);
    const at = Math.floor((tick - begin) / width);
    if (at !== bucket) {
      flush();
      bucket = at;
      high = highReserved = -1;
      low = NEVER;
    }
    if (state.allocated > high || state.reserved > highReserved) {
      high = Math.max(high, state.allocated);
      highReserved = Math.max(highReserved, state.reserved);
      highAt = tick;
    }
    if (state.allocated <= low) {
      low = state.allocated;
      lowAt = tick;
    }
  }
  flush();
  add(end);
  return chosen;
}

/** The sums while time goes on. */
class State {
  readonly classes: Float64Array;
  allocated: number;
  reserved: number;
  /** Bytes asked for, all classes. */
  asked: number;
  readonly #deaths: Int32Array;
  readonly #segments: { tick: number; bytes: number }[];
  #birth: number;
  #death: number;
  #segment = 0;

  constructor(
    private readonly memory: Memory,
    begin: number,
    classes: number,
  ) {
    const start = memory.totals(begin, classes);
    this.classes = start.classes;
    this.allocated = start.allocated;
    this.reserved = start.reserved;
    this.asked = start.classes.reduce((sum, bytes) => sum + bytes, 0);
    this.#deaths = memory.byDeath();
    this.#segments = segmentChanges(memory, begin);
    this.#birth = after(memory.born, begin);
    this.#death = memory.firstDeath(begin + 1);
  }

  /** The tick of the next change; never if there is none. */
  next(): number {
    const { born, freed } = this.memory;
    const birth = this.#birth < born.length ? born[this.#birth] : NEVER;
    const death = this.#death < this.#deaths.length ? freed[this.#deaths[this.#death]] : NEVER;
    const segment = this.#segments[this.#segment]?.tick ?? NEVER;
    return Math.min(birth, death, segment);
  }

  /** Makes every change of `tick`, which is the next. */
  apply(tick: number): void {
    const { born, freed } = this.memory;
    while (this.#birth < born.length && born[this.#birth] === tick) this.#change(this.#birth++, 1);
    while (this.#death < this.#deaths.length && freed[this.#deaths[this.#death]] === tick) {
      this.#change(this.#deaths[this.#death++], -1);
    }
    while (this.#segments[this.#segment]?.tick === tick) this.reserved += this.#segments[this.#segment++].bytes;
  }

  #change(row: number, sign: number): void {
    const { memory } = this;
    const sort = memory.sort[row];
    const requested = sign * memory.sorts.requested[sort];
    this.classes[memory.classOf[sort]] += requested;
    this.asked += requested;
    this.allocated += sign * memory.sorts.size[sort];
  }
}

function segmentChanges(memory: Memory, begin: number): { tick: number; bytes: number }[] {
  const { born, gone, size } = memory.segments;
  const changes: { tick: number; bytes: number }[] = [];
  for (let row = 0; row < born.length; row++) {
    if (born[row] > begin) changes.push({ tick: born[row], bytes: size[row] });
    if (gone[row] > begin && gone[row] !== NEVER) changes.push({ tick: gone[row], bytes: -size[row] });
  }
  return changes.sort((a, b) => a.tick - b.tick);
}
