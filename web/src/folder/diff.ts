/** Two recordings compared: peaks, classes as a chart of changes, sites, growth. */

import { button, h, prose } from "../dom.js";
import * as format from "../format.js";
import type { Place } from "../report.js";
import { swatch } from "../views/legend.js";
import { ask, type Diff, type Side, type SiteChange } from "./data.js";
import { badge, named, plain, scrolled, section } from "./shared.js";

/** Sites that are shown at first. */
const FIRST = 15;

export class DiffView {
  readonly element = section("comparison", "Comparison");
  readonly #content = h("div");
  #asked = "";

  constructor(
    private readonly titles: () => Map<string, string>,
    private readonly swap: () => void,
    private readonly close: () => void,
  ) {
    this.element.append(this.#content);
    this.element.hidden = true;
  }

  hide(): void {
    this.#asked = "";
    this.element.hidden = true;
  }

  async show(before: number, after: number): Promise<void> {
    const asked = `${before},${after}`;
    this.#asked = asked;
    this.element.hidden = false;
    this.#content.replaceChildren(h("p", { role: "status" }, "Comparing…"));
    let content: Node[];
    try {
      content = this.#made(await ask<Diff>(`/api/diff?a=${before}&b=${after}`));
    } catch (error) {
      content = [h("p", { class: "bad", role: "alert" }, error instanceof Error ? error.message : String(error))];
    }
    // Somebody asked for something else meanwhile.
    if (this.#asked !== asked) return;
    this.#content.replaceChildren(...content);
    this.element.scrollIntoView();
    this.element.focus({ preventScroll: true });
  }

  #made(diff: Diff): Node[] {
    const { before, after } = diff;
    const titles = this.titles();
    const tools = h("div", { class: "tools" }, button("Swap", this.swap), button("Close", this.close));
    const sides = h("dl", { class: "facts" }, side("Before", before), side("After", after));
    return [
      tools,
      sides,
      sums(before, after),
      classes(diff, titles),
      ...sites(diff.sites, titles),
      growth(diff.growth),
    ].filter((node) => node !== null);
  }
}

function side(title: string, of: Side): HTMLElement {
  const { source, verdict } = of;
  const name = named({ name: source.path, device: source.device, devices: source.devices });
  const kind = verdict.headline.split(":")[0];
  const said = prose(plain(kind, verdict.headline));
  return h(
    "div",
    {},
    h("dt", {}, title),
    h("dd", {}, h("strong", {}, name), " ", badge(verdict.kind, kind), " ", ...said),
  );
}

function sums(before: Side, after: Side): HTMLElement {
  const row = (title: string, one: number, other: number) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, title),
      number(format.bytes(one)),
      number(format.bytes(other)),
      changed(other - one),
    );
  const steps = h(
    "tr",
    {},
    h("th", { scope: "row" }, "steps"),
    number(format.count(before.steps)),
    number(format.count(after.steps)),
    number(signed(after.steps - before.steps)),
  );
  return h(
    "table",
    {},
    h("caption", { class: "unseen" }, "Peaks"),
    heads("", "before", "after", "change"),
    h(
      "tbody",
      {},
      row("reserved, at most", before.peaks.reserved_bytes, after.peaks.reserved_bytes),
      row("allocated, at most", before.peaks.allocated_bytes, after.peaks.allocated_bytes),
      steps,
    ),
  );
}

/** Bars to the left for less, to the right for more, all to one scale. */
function classes(diff: Diff, titles: Map<string, string>): HTMLElement | null {
  if (diff.classes.length === 0) return null;
  const most = Math.max(1, ...diff.classes.map((row) => Math.abs(row.change_bytes)));
  const rows = diff.classes.map((row) => {
    const width = (Math.abs(row.change_bytes) / most) * 50;
    const filled = h("span", { class: row.change_bytes > 0 ? "more" : "less" });
    filled.style.setProperty("width", `${width.toFixed(2)}%`);
    filled.style.setProperty("left", `${(row.change_bytes > 0 ? 50 : 50 - width).toFixed(2)}%`);
    const chart = h("td", { class: "change-chart" }, h("span", { class: "change-bar", "aria-hidden": "true" }, filled));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch(row.class), title(titles, row.class)),
      number(format.bytes(row.before_bytes)),
      number(format.bytes(row.after_bytes)),
      changed(row.change_bytes),
      chart,
    );
  });
  const table = h(
    "table",
    { class: "changes" },
    h("caption", {}, "By class, at the peak of allocated memory"),
    heads("class", "before", "after", "change", ""),
    h("tbody", {}, ...rows),
  );
  return scrolled("Table of classes", table);
}

function sites(all: SiteChange[], titles: Map<string, string>): (Node | null)[] {
  const changes = all.filter((row) => row.change_bytes !== 0);
  if (changes.length === 0) return [h("p", {}, "No site holds more or less at the peak")];
  const body = h("tbody");
  const fill = (count: number) =>
    body.replaceChildren(
      ...changes
        .slice(0, count)
        .map((row) =>
          h(
            "tr",
            {},
            number(format.bytes(row.before_bytes)),
            number(format.bytes(row.after_bytes)),
            changed(row.change_bytes),
            h("td", {}, title(titles, row.class)),
            h("td", {}, where(row)),
          ),
        ),
    );
  fill(FIRST);
  const more = button(`Show all ${format.count(changes.length)}`, () => {
    fill(changes.length);
    more.hidden = true;
  });
  more.hidden = changes.length <= FIRST;
  const table = h(
    "table",
    { class: "changes" },
    h("caption", {}, "By site, at the peak of allocated memory"),
    heads("before", "after", "change", "class", "site"),
    body,
  );
  return [scrolled("Table of sites", table), more];
}

function growth(all: SiteChange[]): HTMLElement | null {
  if (all.length === 0) return null;
  const rows = all.map((row) =>
    h(
      "tr",
      {},
      number(format.bytes(row.before_bytes)),
      number(format.bytes(row.after_bytes)),
      changed(row.change_bytes),
      h("td", {}, where(row)),
    ),
  );
  const table = h(
    "table",
    { class: "changes" },
    h("caption", {}, "Growth each step"),
    heads("before", "after", "change", "site"),
    h("tbody", {}, ...rows),
  );
  return scrolled("Table of growth", table);
}

/** Where it is now; where it was if that is another line. */
function where(row: SiteChange): HTMLElement {
  const { before_site: before, after_site: after } = row;
  const at = after ?? before;
  if (!at) return h("span", {}, format.clean(row.label));
  const moved = before && after && (before.line !== after.line || before.file !== after.file);
  const note = moved ? ` (was line ${before.line})` : !before ? " (new)" : !after ? " (gone)" : "";
  return h(
    "span",
    { title: format.place(at as Place, true) },
    format.place(at as Place),
    h("span", { class: "faint" }, note),
  );
}

function title(titles: Map<string, string>, name: string): string {
  return titles.get(name) ?? name.replaceAll("_", " ");
}

function heads(...titles: string[]): HTMLElement {
  const figures = new Set(["before", "after", "change"]);
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      ...titles.map((text) =>
        text === "" ? h("td") : h("th", { scope: "col", class: figures.has(text) ? "number" : "" }, text),
      ),
    ),
  );
}

function number(text: string): HTMLElement {
  return h("td", { class: "number" }, text);
}

function changed(bytes: number): HTMLElement {
  return h("td", { class: `number ${bytes > 0 ? "grew" : bytes < 0 ? "shrank" : "faint"}` }, format.change(bytes));
}

function signed(count: number): string {
  return count === 0 ? "no change" : `${count > 0 ? "+" : "\u2212"}${format.count(Math.abs(count))}`;
}
