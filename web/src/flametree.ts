/** The tree of a flame graph: places of the program, below their class if asked for, library frames folded or not. */

import type { Memory } from "./memory.js";
import type { Model } from "./model.js";
import type { Moment } from "./source.js";

/** What a node stands for: a frame (its index), or one of these. */
export const ROOT = -1;
export const LIBRARY_ONLY = -2;
export const NO_FRAMES = -3;
/** `CLASS - index` is a class. */
const CLASS = -100;
/** `NOT_KEPT - index` are the blocks of a class that the file leaves out. */
const NOT_KEPT = -10_000;

export type Kind = { is: "frame" | "class" | "not-kept"; index: number } | { is: "root" | "library" | "no-frames" };

export function kindOf(what: number): Kind {
  if (what >= 0) return { is: "frame", index: what };
  if (what <= NOT_KEPT) return { is: "not-kept", index: NOT_KEPT - what };
  if (what <= CLASS) return { is: "class", index: CLASS - what };
  return { is: what === LIBRARY_ONLY ? "library" : what === NO_FRAMES ? "no-frames" : "root" };
}

/** Bytes and blocks of each node, everything below it included. */
export interface Weights {
  bytes: Float64Array;
  blocks: Float64Array;
  /** The class that most of a node's bytes have. */
  mainClass: Uint8Array;
}

/** It only ever grows, so that the nodes of two moments can be compared. */
export class FlameTree {
  readonly parent: number[] = [-1];
  readonly what: number[] = [ROOT];
  readonly #children = new Map<string, number>();
  /** The node of each place below a node, -1 where it was not asked for yet. */
  readonly #nodes = new Map<number, Int32Array>();
  readonly #sorts = new WeakMap<Memory, Int32Array>();

  constructor(
    private readonly model: Model,
    readonly byClass: boolean,
    readonly folded: boolean,
  ) {}

  get length(): number {
    return this.parent.length;
  }

  #child(parent: number, what: number): number {
    const key = `${parent},${what}`;
    const known = this.#children.get(key);
    if (known !== undefined) return known;
    const node = this.parent.push(parent) - 1;
    this.what.push(what);
    this.#children.set(key, node);
    return node;
  }

  classNode(index: number): number {
    return this.#child(0, CLASS - index);
  }

  notKept(index: number): number {
    return this.#child(this.byClass ? this.classNode(index) : 0, NOT_KEPT - index);
  }

  /** The node of a place below `base`. */
  #nodeOf(base: number, place: number): number {
    const { tree, frames } = this.model;
    let nodes = this.#nodes.get(base);
    if (!nodes) {
      nodes = new Int32Array(tree.caller.length).fill(-1);
      if (nodes.length > 0) nodes[0] = base;
      this.#nodes.set(base, nodes);
    }
    if (!(place >= 0 && place < nodes.length)) return this.#child(base, NO_FRAMES);
    const path: number[] = [];
    let at = place;
    while (nodes[at] < 0) {
      path.push(at);
      at = tree.caller[at];
    }
    let node = nodes[at];
    for (let index = path.length - 1; index >= 0; index--) {
      const frame = tree.frame[path[index]];
      if (!(this.folded && frames.kind[frame] === 0)) node = this.#child(node, frame);
      nodes[path[index]] = node;
    }
    if (node !== base) return node;
    return this.#child(base, place === 0 ? NO_FRAMES : LIBRARY_ONLY);
  }

  /** The node of each of the memory's sorts. */
  nodesOf(memory: Memory): Int32Array {
    let nodes = this.#sorts.get(memory);
    if (!nodes) {
      const { place } = memory.sorts;
      nodes = Int32Array.from(place, (at, sort) =>
        this.#nodeOf(this.byClass ? this.classNode(memory.classOf[sort]) : 0, at),
      );
      this.#sorts.set(memory, nodes);
    }
    return nodes;
  }

  /** What the nodes hold at a moment. What the file leaves out closes the sum to the moment's allocated bytes. */
  weigh(moment: Moment): Weights {
    const { memory } = moment;
    const classes = this.model.classes.length;
    const rounding = classes - 1;
    const sorts = this.nodesOf(memory);
    const counts = new Float64Array(sorts.length);
    for (const row of memory.held(moment.tick)) counts[memory.sort[row]]++;
    const { requested, size } = memory.sorts;
    const kept = new Float64Array(classes);
    for (let sort = 0; sort < sorts.length; sort++) {
      kept[memory.classOf[sort]] += counts[sort] * requested[sort];
      kept[rounding] += counts[sort] * (size[sort] - requested[sort]);
    }
    const missing = moment.exact ? [] : Array.from(moment.classes, (bytes, index) => Math.max(0, bytes - kept[index]));
    const missingNodes = missing.map((bytes, index) => (bytes > 0 ? this.notKept(index) : -1));
    const roundingNode = this.byClass && kept[rounding] > 0 ? this.classNode(rounding) : -1;

    const length = this.length;
    const byClass = new Float64Array(length * classes);
    const blocks = new Float64Array(length);
    for (let sort = 0; sort < sorts.length; sort++) {
      if (counts[sort] === 0) continue;
      const bytes = this.byClass ? requested[sort] : size[sort];
      byClass[sorts[sort] * classes + memory.classOf[sort]] += counts[sort] * bytes;
      blocks[sorts[sort]] += counts[sort];
    }
    missingNodes.forEach((node, index) => {
      if (node >= 0) byClass[node * classes + index] += missing[index];
    });
    if (roundingNode >= 0) byClass[roundingNode * classes + rounding] += kept[rounding];
    return this.#summed(byClass, blocks, classes);
  }

  /** Adds every node to its parent: a child's index is greater than its parent's. */
  #summed(byClass: Float64Array, blocks: Float64Array, classes: number): Weights {
    const length = blocks.length;
    const bytes = new Float64Array(length);
    const mainClass = new Uint8Array(length);
    for (let node = length - 1; node >= 0; node--) {
      const parent = this.parent[node];
      let most = -1;
      for (let index = 0; index < classes; index++) {
        const part = byClass[node * classes + index];
        if (part === 0) continue;
        bytes[node] += part;
        if (part > most) {
          most = part;
          mainClass[node] = index;
        }
        if (parent >= 0) byClass[parent * classes + index] += part;
      }
      if (parent >= 0) blocks[parent] += blocks[node];
    }
    return { bytes, blocks, mainClass };
  }

  /** The children of each node, as positions into one list. */
  children(): { starts: Int32Array; list: Int32Array } {
    const starts = new Int32Array(this.length + 1);
    for (let node = 1; node < this.length; node++) starts[this.parent[node] + 1]++;
    for (let node = 1; node < starts.length; node++) starts[node] += starts[node - 1];
    const next = starts.slice();
    const list = new Int32Array(this.length);
    for (let node = 1; node < this.length; node++) list[next[this.parent[node]]++] = node;
    return { starts, list };
  }

  /** From the root to the node, both included. */
  path(node: number): number[] {
    const path: number[] = [];
    for (let at = node; at >= 0; at = this.parent[at]) path.unshift(at);
    return path;
  }
}
