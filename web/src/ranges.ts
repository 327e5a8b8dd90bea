/** The segments of a moment as ranges of addresses, with the blocks in them. */

import { after } from "./columns.js";
import type { Memory } from "./memory.js";

export interface Range {
  address: number;
  size: number;
  lane: number;
  expandable: boolean;
  /** Segments of which it is made: neighbours of an expandable range are one. */
  segments: number;
  /** Rows of its blocks, by address; those that wait for another stream included. */
  blocks: number[];
  /** Bytes that no block covers. */
  free: number;
  largestFree: number;
}

export interface Piece {
  address: number;
  size: number;
  /** The block's row; -1 where it is free. */
  row: number;
  waiting: boolean;
}

export interface Ranges {
  ranges: Range[];
  /** Blocks in no known segment: only where the file leaves segments out. */
  strays: number;
  waiting: Set<number>;
}

export function rangesAt(memory: Memory, tick: number): Ranges {
  const { segments } = memory;
  const rows = memory.reserved(tick).sort((a, b) => segments.address[a] - segments.address[b]);
  const ranges: Range[] = [];
  for (const row of rows) {
    const [address, size, lane] = [segments.address[row], segments.size[row], segments.lane[row]];
    const expandable = segments.expandable[row] === 1;
    const before = ranges[ranges.length - 1];
    if (expandable && before?.expandable && before.lane === lane && before.address + before.size === address) {
      before.size += size;
      before.segments += 1;
    } else {
      ranges.push({ address, size, lane, expandable, segments: 1, blocks: [], free: size, largestFree: size });
    }
  }
  const waiting = new Set(memory.waiting(tick));
  const blocks = [...memory.held(tick), ...waiting].sort((a, b) => memory.address[a] - memory.address[b]);
  const starts = Float64Array.from(ranges, (range) => range.address);
  let strays = 0;
  for (const row of blocks) {
    const range = ranges[after(starts, memory.address[row]) - 1];
    if (range && memory.address[row] < range.address + range.size) range.blocks.push(row);
    else strays += 1;
  }
  for (const range of ranges) {
    range.free = 0;
    range.largestFree = 0;
    for (const piece of pieces(memory, range)) {
      if (piece.row >= 0) continue;
      range.free += piece.size;
      range.largestFree = Math.max(range.largestFree, piece.size);
    }
  }
  return { ranges, strays, waiting };
}

/** Blocks and free pieces of a range from its start to its end. */
export function pieces(memory: Memory, range: Range, waiting?: Set<number>): Piece[] {
  const list: Piece[] = [];
  let at = range.address;
  const end = range.address + range.size;
  for (const row of range.blocks) {
    const address = memory.address[row];
    if (address > at) list.push({ address: at, size: address - at, row: -1, waiting: false });
    const size = Math.min(memory.sorts.size[memory.sort[row]], end - address);
    list.push({ address, size, row, waiting: waiting?.has(row) ?? false });
    at = Math.max(at, address + size);
  }
  if (at < end) list.push({ address: at, size: end - at, row: -1, waiting: false });
  return list;
}
