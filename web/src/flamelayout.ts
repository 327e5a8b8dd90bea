/** Where each node of a flame graph is drawn. */

import type { FlameTree, Weights } from "./flametree.js";

export interface Rect {
  node: number;
  row: number;
  x: number;
  width: number;
}

export interface Layout {
  rects: Rect[];
  rows: number;
  /** Whether there is more below the last row. */
  deeper: boolean;
}

/** Narrower than this nothing can be seen or hit. */
const LEAST_WIDTH = 0.7;
/** More rows than this are shown after a zoom only. */
export const MOST_ROWS = 120;

/**
 * Lays out `root` and what is below it over `width`. Children stand in the order of `rank`, largest first. What
 * `extent` says of a node is at least the sum over its children.
 */
export function layout(
  tree: FlameTree,
  children: { starts: Int32Array; list: Int32Array },
  extent: Float64Array,
  rank: Float64Array,
  root: number,
  width: number,
): Layout {
  const rects: Rect[] = [];
  let rows = 0;
  let deeper = false;
  const whole = extent[root];
  if (!(whole > 0) || width <= 0) return { rects, rows, deeper };
  const scale = width / whole;
  // The way to the root stays visible above it.
  const path = tree.path(root);
  path.slice(0, -1).forEach((node, row) => rects.push({ node, row, x: 0, width }));
  const pending: Rect[] = [{ node: root, row: path.length - 1, x: 0, width }];
  for (let rect = pending.pop(); rect; rect = pending.pop()) {
    rects.push(rect);
    rows = Math.max(rows, rect.row + 1);
    const { starts, list } = children;
    if (rect.row + 1 - (path.length - 1) >= MOST_ROWS) {
      deeper ||= starts[rect.node + 1] > starts[rect.node];
      continue;
    }
    const visible: number[] = [];
    for (let at = starts[rect.node]; at < starts[rect.node + 1]; at++) {
      if (extent[list[at]] * scale >= LEAST_WIDTH) visible.push(list[at]);
    }
    visible.sort((a, b) => rank[b] - rank[a] || a - b);
    let x = rect.x;
    for (const node of visible) {
      pending.push({ node, row: rect.row + 1, x, width: extent[node] * scale });
      x += extent[node] * scale;
    }
  }
  return { rects, rows, deeper };
}

/** The extents of a comparison: wide enough for both moments, each node at least its children together. */
export function both(tree: FlameTree, now: Weights, then: Weights): Float64Array {
  const length = tree.length;
  const at = (column: Float64Array, node: number) => (node < column.length ? column[node] : 0);
  const own = new Float64Array(length);
  const selfNow = new Float64Array(length);
  const selfThen = new Float64Array(length);
  for (let node = length - 1; node >= 0; node--) {
    selfNow[node] += at(now.bytes, node);
    selfThen[node] += at(then.bytes, node);
    own[node] += Math.max(0, selfNow[node], selfThen[node]);
    const parent = tree.parent[node];
    if (parent < 0) continue;
    selfNow[parent] -= at(now.bytes, node);
    selfThen[parent] -= at(then.bytes, node);
    own[parent] += own[node];
  }
  return own;
}

/** Bytes of the topmost nodes for which `matched` holds, so that nothing counts twice. */
export function matchedBytes(tree: FlameTree, bytes: Float64Array, matched: Uint8Array): number {
  const below = new Uint8Array(tree.length);
  let sum = 0;
  for (let node = 0; node < tree.length; node++) {
    const parent = tree.parent[node];
    if (parent >= 0 && (below[parent] || matched[parent])) below[node] = 1;
    else if (matched[node]) sum += bytes[node] ?? 0;
  }
  return sum;
}
