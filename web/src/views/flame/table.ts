/** The largest stacks of the moment as a table: what the flame graph shows, for those who cannot see it. */

import type { App } from "../../app.js";
import { h } from "../../dom.js";
import type { FlameTree, Weights } from "../../flametree.js";
import * as format from "../../format.js";
import type { Names } from "./names.js";

const ROWS = 20;

export interface Shown {
  tree: FlameTree;
  weights: Weights;
  /** Where the children of each node start; a node without any is the end of a stack. */
  starts: Int32Array;
  names: Names;
}

/** Made when it is opened. */
export function largestTable(app: App, shown: () => Shown): HTMLElement {
  const body = h("tbody");
  const fill = () => {
    const { tree, weights, starts, names } = shown();
    const { bytes } = weights;
    const ends: number[] = [];
    for (let node = 1; node < tree.length; node++) {
      if (starts[node + 1] === starts[node] && bytes[node] > 0) ends.push(node);
    }
    ends.sort((a, b) => bytes[b] - bytes[a]);
    const name = (node: number) => format.clean(names.short(tree.what[node]), 60);
    const row = (node: number) =>
      h(
        "tr",
        {},
        h("td", { class: "number" }, format.bytes(bytes[node])),
        h("td", { class: "number" }, format.share(bytes[node], bytes[0])),
        h("td", {}, tree.path(node).slice(1).map(name).join(" › ")),
      );
    body.replaceChildren(...ends.slice(0, ROWS).map(row));
  };
  const head = ["held", "of allocated", "stack"].map((name, index) =>
    h("th", { scope: "col", class: index < 2 ? "number" : "" }, name),
  );
  const details = h(
    "details",
    { ontoggle: () => details.open && fill() },
    h("summary", {}, "The largest stacks as a table"),
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "The largest stacks as a table" },
      h("table", {}, h("thead", {}, h("tr", {}, ...head)), body),
    ),
  );
  app.moment.on(() => details.open && fill());
  return details;
}
