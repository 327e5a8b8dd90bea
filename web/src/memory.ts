/** Blocks and segments with their lives, and what can be asked of them. */

import { after, from, summed } from "./columns.js";
import type { Memory as Data } from "./page.js";

/** More ticks than this are sorted by comparing. */
const MANY_TICKS = 2e7;

/** Never. */
export const NEVER = Number.POSITIVE_INFINITY;

export interface Totals {
  /** Bytes asked for, a class. */
  classes: Float64Array;
  /** Bytes of whole blocks. */
  allocated: number;
  reserved: number;
  blocks: number;
  segments: number;
}

export class Memory {
  readonly complete: boolean;
  readonly ofBlocks: number;
  readonly ofSegments: number;
  readonly exactTicks: ReadonlySet<number>;
  /** Rows are in the order of their births. */
  readonly born: Float64Array;
  /** The tick from which the program no longer holds the block. */
  readonly freed: Float64Array;
  readonly address: Float64Array;
  readonly sort: Int32Array;
  /** The tick from which a block that waited for another stream could be used again. */
  readonly pending: ReadonlyMap<number, number>;
  readonly sorts: {
    place: Int32Array;
    rule: Int32Array;
    requested: Float64Array;
    size: Float64Array;
    lane: Int32Array;
  };
  readonly segments: {
    born: Float64Array;
    gone: Float64Array;
    address: Float64Array;
    size: Float64Array;
    lane: Int32Array;
    expandable: Uint8Array;
  };
  /** The class of each sort. */
  readonly classOf: Int32Array;
  #byDeath: Int32Array | null = null;

  constructor(data: Data, ruleClass: readonly number[], last: number) {
    this.complete = data.complete;
    this.ofBlocks = data.of_blocks;
    this.ofSegments = data.of_segments;
    this.exactTicks = new Set(data.exact_ticks);
    const { blocks, sorts, segments } = data;
    this.born = summed(blocks.born_delta);
    this.freed = ends(this.born, blocks.life);
    this.address = summed(blocks.address_delta);
    this.sort = Int32Array.from(blocks.sort);
    this.pending = new Map(blocks.pending.map(([row, tick]) => [row, tick < 0 ? NEVER : tick]));
    this.sorts = {
      place: Int32Array.from(sorts.place),
      rule: Int32Array.from(sorts.rule),
      requested: Float64Array.from(sorts.requested),
      size: Float64Array.from(sorts.size),
      lane: Int32Array.from(sorts.lane),
    };
    const born = summed(segments.born_delta);
    this.segments = {
      born,
      gone: ends(born, segments.life),
      address: summed(segments.address_delta),
      size: Float64Array.from(segments.size),
      lane: Int32Array.from(segments.lane),
      expandable: Uint8Array.from(segments.expandable),
    };
    this.classOf = this.sorts.rule.map((rule) => ruleClass[rule] ?? 0);
    this.last = last;
  }

  /** The tick after the last event. */
  readonly last: number;

  get length(): number {
    return this.born.length;
  }

  /** Whether every block and segment of that moment is here. */
  isExact(tick: number): boolean {
    return this.complete || this.exactTicks.has(tick);
  }

  /** Rows of the blocks that the program holds at `tick`. */
  held(tick: number): Int32Array {
    const end = after(this.born, tick);
    const rows = new Int32Array(end);
    let count = 0;
    for (let row = 0; row < end; row++) if (this.freed[row] > tick) rows[count++] = row;
    return rows.subarray(0, count);
  }

  /** Rows of the blocks that wait for another stream at `tick`. */
  waiting(tick: number): number[] {
    const rows: number[] = [];
    for (const [row, usable] of this.pending) if (this.freed[row] <= tick && tick < usable) rows.push(row);
    return rows.sort((a, b) => a - b);
  }

  /** Rows of the segments that are reserved at `tick`. */
  reserved(tick: number): Int32Array {
    const { born, gone } = this.segments;
    const rows = new Int32Array(born.length);
    let count = 0;
    for (let row = 0; row < born.length; row++) if (born[row] <= tick && tick < gone[row]) rows[count++] = row;
    return rows.subarray(0, count);
  }

  totals(tick: number, classes: number): Totals {
    const sums = new Float64Array(classes);
    const { requested, size } = this.sorts;
    const held = this.held(tick);
    let allocated = 0;
    for (const row of held) {
      const sort = this.sort[row];
      sums[this.classOf[sort]] += requested[sort];
      allocated += size[sort];
    }
    const segments = this.reserved(tick);
    let reserved = 0;
    for (const row of segments) reserved += this.segments.size[row];
    return { classes: sums, allocated, reserved, blocks: held.length, segments: segments.length };
  }

  /** Rows in the order in which the program freed them; those that it never freed are not among them. */
  byDeath(): Int32Array {
    if (this.#byDeath) return this.#byDeath;
    const last = this.last;
    if (last > MANY_TICKS) {
      const rows = Int32Array.from(this.freed.keys()).filter((row) => this.freed[row] <= last);
      this.#byDeath = rows.sort((a, b) => this.freed[a] - this.freed[b]);
      return this.#byDeath;
    }
    // A counting sort over ticks: a comparison for each of some hundred thousand rows would be felt.
    const starts = new Int32Array(last + 2);
    const { freed } = this;
    for (let row = 0; row < freed.length; row++) if (freed[row] <= last) starts[freed[row] + 1]++;
    for (let tick = 1; tick < starts.length; tick++) starts[tick] += starts[tick - 1];
    const rows = new Int32Array(starts[last + 1]);
    for (let row = 0; row < freed.length; row++) if (freed[row] <= last) rows[starts[freed[row]]++] = row;
    this.#byDeath = rows;
    return rows;
  }

  /** Rows born and rows freed after `begin` and not after `end`. */
  changes(begin: number, end: number): { born: Int32Array; freed: Int32Array } {
    const first = after(this.born, begin);
    const born = Int32Array.from({ length: Math.max(0, after(this.born, end) - first) }, (_, index) => first + index);
    const order = this.byDeath();
    const low = this.firstDeath(begin + 1);
    return { born, freed: order.subarray(low, Math.max(low, this.firstDeath(end + 1))) };
  }

  /** The first position in `byDeath` of a row that was freed at `tick` or later. */
  firstDeath(tick: number): number {
    const order = this.byDeath();
    let low = 0;
    let high = order.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.freed[order[middle]] < tick) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Bytes of the blocks for whose sort `wanted` holds, at each of `ticks`, which never fall. */
  through(ticks: ArrayLike<number>, wanted: Uint8Array): Float64Array {
    const sums = new Float64Array(ticks.length + 1);
    for (let row = 0; row < this.born.length; row++) {
      const sort = this.sort[row];
      if (!wanted[sort]) continue;
      const size = this.sorts.size[sort];
      sums[from(ticks, this.born[row])] += size;
      const freed = this.freed[row];
      if (freed !== NEVER) sums[from(ticks, freed)] -= size;
    }
    for (let index = 1; index < sums.length; index++) sums[index] += sums[index - 1];
    return sums.subarray(0, ticks.length);
  }
}

function ends(born: Float64Array, life: readonly number[]): Float64Array {
  return born.map((tick, row) => ((life[row] ?? -1) < 0 ? NEVER : tick + life[row]));
}
