/** A stack as a list, innermost frame first, runs of library frames folded. */

import { button, h } from "../dom.js";
import * as format from "../format.js";
import type { Place } from "../report.js";
import { siteElement } from "./verdict.js";

/** Stacks longer than this are cut: nobody reads on. */
const LONGEST = 300;
/** A run of fewer library frames is not worth folding. */
const FEWEST = 3;
/** What a library's path looks like, where nothing better is known. */
const LIBRARY = /(site|dist)-packages|[/\\]lib[/\\]python\d|^<|^\?\?$|torch[/\\]|\.(cpp|cc|cu|h|hpp)$/;

export function isLibrary(place: Place): boolean {
  return LIBRARY.test(place.file.slice(0, 1000));
}

export function stackElement<T extends Place>(stack: T[], library: (place: T) => boolean): HTMLElement {
  const list = h("ol", { class: "stack" });
  let folded: T[] = [];
  const frame = (place: T) => h("li", {}, siteElement(place));
  const flush = () => {
    const places = folded;
    folded = [];
    if (places.length < FEWEST) {
      list.append(...places.map(frame));
      return;
    }
    const item = h("li", { class: "folded" });
    const unfold = button(`… ${places.length} library frames`, () => item.replaceWith(...places.map(frame)));
    unfold.setAttribute("aria-label", `Show ${places.length} library frames`);
    item.append(unfold);
    list.append(item);
  };
  for (const place of stack.slice(0, LONGEST)) {
    if (library(place)) folded.push(place);
    else {
      flush();
      list.append(frame(place));
    }
  }
  flush();
  const left = stack.length - LONGEST;
  if (left > 0) list.append(h("li", { class: "faint" }, `and ${format.counted(left, "more frame")}`));
  return list;
}
