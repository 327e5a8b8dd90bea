/** What the nodes of a flame graph are called, and which of them a search finds. */

import * as format from "../../format.js";
import type { FlameTree } from "../../flametree.js";
import { kindOf } from "../../flametree.js";
import type { Model } from "../../model.js";

/** Longer names are never seen. */
const LONGEST = 200;

export class Names {
  readonly #short = new Map<number, string>();
  #haystack: string[] | null = null;

  constructor(private readonly model: Model) {}

  /** In its rectangle. */
  short(what: number): string {
    let text = this.#short.get(what);
    if (text === undefined) {
      text = this.#text(what, false);
      this.#short.set(what, text);
    }
    return text;
  }

  full(what: number): string {
    return this.#text(what, true);
  }

  #text(what: number, full: boolean): string {
    const { model } = this;
    const kind = kindOf(what);
    switch (kind.is) {
      case "root":
        return "everything";
      case "library":
        return "only library frames";
      case "no-frames":
        return "no frame recorded";
      case "class":
        return model.classes[kind.index]?.title ?? "unknown";
      case "not-kept":
        return `smaller blocks not kept in this file (${model.classes[kind.index]?.title ?? "unknown"})`;
      case "frame": {
        const name = format.clean(model.strings[model.frames.function[kind.index]] ?? "", LONGEST);
        const file = model.strings[model.frames.file[kind.index]] ?? "";
        if (full) return model.frameText(kind.index, true);
        if (file === "") return name;
        const line = model.frames.line[kind.index];
        return `${name} · ${format.clean(format.baseName(file), LONGEST)}${line > 0 ? `:${line}` : ""}`;
      }
    }
  }

  /** Which nodes `query` matches; null for an empty query. */
  matches(tree: FlameTree, query: string): Uint8Array | null {
    const wanted = query.trim().toLowerCase();
    if (wanted === "") return null;
    const { frames, strings, classes } = this.model;
    this.#haystack ??= strings.map((text) => text.slice(0, 4000).toLowerCase());
    const haystack = this.#haystack;
    const found = Uint8Array.from(haystack, (text) => Number(text.includes(wanted)));
    const frameFound = Uint8Array.from(frames.function, (name, frame) => {
      if (found[name] || found[frames.file[frame]]) return 1;
      // `train.py:16` is how places are written everywhere.
      if (!wanted.includes(":")) return 0;
      return Number(`${haystack[frames.file[frame]]}:${frames.line[frame]}`.endsWith(wanted));
    });
    return Uint8Array.from(tree.what, (what) => {
      if (what >= 0) return frameFound[what];
      const kind = kindOf(what);
      return kind.is === "class" ? Number(classes[kind.index]?.title.toLowerCase().includes(wanted)) : 0;
    });
  }
}
