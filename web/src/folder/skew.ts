/** What differs between ranks: a table a run, outliers in words, and what stands out in one sentence. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { swatch } from "../views/legend.js";
import type { Measure, Run } from "./data.js";
import { amount, bar, scrolled, section } from "./shared.js";

/** Classes that never hold this part of the reserved memory have no column, unless a rank stands out. */
const LEAST = 0.005;

export class SkewView {
  readonly element = section("ranks", "Ranks");
  readonly #content = h("div");

  constructor() {
    this.element.append(this.#content);
    this.element.hidden = true;
  }

  update(runs: Run[]): void {
    this.element.hidden = runs.length === 0;
    this.#content.replaceChildren(...runs.map((run) => shown(run, runs.length > 1)));
  }
}

function shown(run: Run, several: boolean): HTMLElement {
  const most = Math.max(...run.measures[0].values);
  const columns = run.measures.filter(
    (measure) => !measure.class || measure.max >= most * LEAST || measure.outliers.some((outlier) => outlier !== null),
  );
  const name = format.clean(run.name, 300);
  const sentences = run.sentences.map((sentence) => h("li", {}, format.capitalized(format.clean(sentence))));
  const heads = columns.map((measure) =>
    h("th", { scope: "col", class: "number" }, measure.class ? swatch(measure.class) : null, measure.title),
  );
  const rows = run.ranks.map(({ rank, recording }, index) => {
    const out = columns.some((measure) => measure.outliers[index] !== null);
    const link = h("a", { href: `/recordings/${encodeURIComponent(recording)}` }, `rank ${rank}`);
    return h(
      "tr",
      { class: out ? "odd" : "" },
      h("th", { scope: "row" }, link),
      ...columns.map((measure) => cell(measure, index)),
    );
  });
  const foot = (["min", "median", "max"] as const).map((of) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, of),
      ...columns.map((measure) => h("td", { class: "number" }, amount(measure[of], measure.unit))),
    ),
  );
  const table = h(
    "table",
    { class: "skew" },
    h("caption", { class: "unseen" }, `Ranks of ${name}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "rank"), ...heads)),
    h("tbody", {}, ...rows),
    h("tfoot", {}, ...foot),
  );
  return h(
    "div",
    { class: "run" },
    several ? h("h3", {}, h("code", {}, name)) : null,
    h("ul", { class: "sentences" }, ...sentences),
    scrolled(`Table of the ranks of ${name}`, table),
  );
}

function cell(measure: Measure, index: number): HTMLElement {
  const value = measure.values[index];
  const outlier = measure.outliers[index];
  const text = amount(value, measure.unit);
  const share = measure.max > 0 ? value / measure.max : 0;
  if (outlier === null) return h("td", { class: "number" }, text, bar(share, "second"));
  const more = value > measure.median;
  const words = outlier.replace(/ than the median$/, "");
  return h(
    "td",
    { class: "number out" },
    h("strong", {}, text),
    bar(share),
    h(
      "span",
      { class: "words" },
      h("span", { "aria-hidden": "true" }, more ? "▲ " : "▼ "),
      words,
      h("span", { class: "unseen" }, " than the median"),
    ),
  );
}
