/** The recordings: verdict, peaks, growth, and which two to compare. */

import { button, h, prose } from "../dom.js";
import * as format from "../format.js";
import type { Recording } from "./data.js";
import { badge, bar, named, plain, scrolled, section } from "./shared.js";

interface Column {
  title: string;
  key: (recording: Recording) => number | string;
  number: boolean;
}

const COLUMNS: Column[] = [
  { title: "recording", number: false, key: (one) => one.name },
  { title: "verdict", number: false, key: (one) => one.verdict?.kind ?? "" },
  { title: "reserved, at most", number: true, key: (one) => one.peaks?.reserved_bytes ?? -1 },
  { title: "allocated, at most", number: true, key: (one) => one.peaks?.allocated_bytes ?? -1 },
  { title: "steps", number: true, key: (one) => one.steps ?? -1 },
  { title: "growth each step", number: true, key: (one) => one.growth_bytes_per_step ?? -1 },
  { title: "file", number: true, key: (one) => one.bytes },
];

/** Verdicts as they are counted: of one, of several. */
const COUNTED: Record<string, [string, string]> = {
  leak: ["leak", "leaks"],
  oom: ["out of memory", "out of memory"],
  fragmentation: ["fragmented", "fragmented"],
  stranded: ["with stranded memory", "with stranded memory"],
};

/** More recordings than this get a field to filter them. */
const MANY = 8;

export class ListView {
  readonly element: HTMLElement;
  readonly #body = h("tbody");
  readonly #heads: HTMLTableCellElement[];
  readonly #summary = h("p", { class: "faint", role: "status" });
  readonly #filter: HTMLInputElement;
  readonly #compare: HTMLButtonElement;
  readonly #hint = h("span", { class: "faint" });
  #all: Recording[] = [];
  #sorted = -1;
  #descending = false;
  /** Those to compare, the one before first. */
  #picked: number[] = [];

  constructor(compare: (before: number, after: number) => void) {
    this.#heads = COLUMNS.map(({ title, number }, index) =>
      h(
        "th",
        { scope: "col", class: number ? "number" : "", "aria-sort": "none" },
        button(title, () => this.#sortBy(index)),
      ),
    );
    this.#filter = h("input", {
      type: "search",
      placeholder: "Filter by name or verdict",
      "aria-label": "Filter recordings",
      oninput: () => this.#show(),
    });
    this.#compare = button("Compare", () => compare(this.#picked[0], this.#picked[1]));
    const pick = h("th", { scope: "col" }, h("span", { class: "unseen" }, "Compare"));
    const table = h(
      "table",
      { class: "recordings" },
      h("caption", { class: "unseen" }, "Recordings"),
      h("thead", {}, h("tr", {}, pick, ...this.#heads)),
      this.#body,
    );
    const tools = h("div", { class: "tools" }, this.#filter, this.#compare, this.#hint);
    this.element = section("recordings", "Recordings", this.#summary, tools, scrolled("Table of recordings", table));
  }

  update(recordings: Recording[]): void {
    this.#all = recordings;
    const known = new Set(recordings.map(({ id }) => id));
    this.#picked = this.#picked.filter((id) => known.has(id));
    this.#show();
  }

  /** Ticks the two that are compared. */
  pick(before: number, after: number): void {
    this.#picked = [before, after];
    this.#show();
  }

  #sortBy(column: number): void {
    this.#descending = this.#sorted === column ? !this.#descending : COLUMNS[column].number;
    this.#sorted = column;
    this.#show();
  }

  #show(): void {
    const focused = document.activeElement?.getAttribute("data-focus");
    const wanted = this.#filter.value.trim().toLowerCase();
    const text = (one: Recording) => `${named(one)} ${one.verdict_title ?? one.state} ${one.verdict?.headline ?? ""}`;
    const rows = this.#all.filter((one) => text(one).toLowerCase().includes(wanted));
    const column = COLUMNS[this.#sorted];
    if (column) {
      const sign = this.#descending ? -1 : 1;
      const order = (a: number | string, b: number | string) =>
        typeof a === "number" && typeof b === "number"
          ? a - b
          : String(a).localeCompare(String(b), "en", { numeric: true });
      rows.sort((a, b) => sign * order(column.key(a), column.key(b)));
    }
    this.#heads.forEach((head, index) => {
      const way = this.#descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", index === this.#sorted ? way : "none");
    });
    const most = Math.max(1, ...this.#all.map((one) => one.peaks?.reserved_bytes ?? 0));
    this.#body.replaceChildren(...rows.map((one) => this.#row(one, most)));
    this.#filter.hidden = this.#all.length <= MANY;
    this.#summary.textContent = summary(this.#all);
    this.#tools();
    if (focused) this.#body.querySelector<HTMLElement>(`[data-focus="${focused}"]`)?.focus();
  }

  #row(one: Recording, most: number): HTMLElement {
    const name = named(one);
    const tick = h("input", {
      type: "checkbox",
      checked: this.#picked.includes(one.id),
      disabled: !one.peaks || one.state === "failed",
      "aria-label": `Compare ${name}`,
      "data-focus": `tick-${one.id}`,
      onchange: () => {
        this.#picked = this.#picked.filter((id) => id !== one.id);
        if (tick.checked) this.#picked = [...this.#picked, one.id].slice(-2);
        this.#show();
      },
    });
    const link = h("a", { href: `/recordings/${one.id}`, "data-focus": `link-${one.id}` }, name);
    const cells = [h("td", {}, tick), h("th", { scope: "row" }, link)];
    const peaks = one.peaks;
    if (one.state !== "ready" || !peaks) {
      cells.push(
        h("td", { class: "said", colspan: 5 }, state(one)),
        h("td", { class: "number" }, format.bytes(one.bytes)),
      );
      return h("tr", {}, ...cells);
    }
    const growth = one.growth_bytes_per_step ?? 0;
    cells.push(
      h("td", { class: "said" }, verdict(one)),
      h("td", { class: "number" }, format.bytes(peaks.reserved_bytes), bar(peaks.reserved_bytes / most)),
      h("td", { class: "number" }, format.bytes(peaks.allocated_bytes), bar(peaks.allocated_bytes / most, "second")),
      h("td", { class: "number" }, one.steps ? format.count(one.steps) : "–"),
      h("td", { class: "number" }, growth > 0 ? format.change(growth) : "–"),
      h("td", { class: "number" }, format.bytes(one.bytes)),
    );
    return h("tr", { class: this.#picked.includes(one.id) ? "chosen" : "" }, ...cells);
  }

  #tools(): void {
    const [before, after] = this.#picked.map((id) => this.#all.find((one) => one.id === id));
    this.#compare.disabled = !(before && after);
    const many = this.#all.filter((one) => one.peaks).length > 1;
    this.#compare.hidden = this.#hint.hidden = !many;
    if (before && after) this.#hint.textContent = `from ${named(before)} to ${named(after)}`;
    else if (before) this.#hint.textContent = `from ${named(before)} to … tick another one`;
    else this.#hint.textContent = "Tick two recordings to compare them";
  }
}

function verdict(one: Recording): HTMLElement {
  const { kind, headline } = one.verdict ?? { kind: "", headline: "" };
  const title = one.verdict_title ?? kind;
  const late = one.complete === false ? h("span", { class: "faint" }, " (starts late)") : null;
  return h("span", {}, badge(kind, title), " ", ...prose(plain(title, headline)), late);
}

function state(one: Recording): HTMLElement {
  if (one.state === "failed") {
    const hint = one.hint ? h("span", { class: "faint" }, " ", ...prose(format.clean(one.hint))) : null;
    return h(
      "span",
      {},
      h("span", { class: "badge" }, h("span", { "aria-hidden": "true" }, "!"), "Not readable"),
      " ",
      ...prose(format.clean(one.error ?? "")),
      hint,
    );
  }
  if (one.percent === null) return h("span", { class: "faint" }, "waits for others to be read");
  const doing = one.percent < 100 ? `reading… ${one.percent} %` : "analysing…";
  return h("span", { class: "faint" }, doing, bar(one.percent / 100));
}

/** `12 recordings: 2 leaks, 10 healthy; 3 are being read`. */
function summary(all: Recording[]): string {
  if (all.length === 0) return "No recording yet: what is written into the folder appears here";
  const kinds = new Map<string, number>();
  for (const { state, verdict } of all) {
    if (state === "ready" && verdict) kinds.set(verdict.kind, (kinds.get(verdict.kind) ?? 0) + 1);
  }
  const sorted = [...kinds].sort(([a, x], [b, y]) => Number(a === "healthy") - Number(b === "healthy") || y - x);
  const parts = sorted.map(([kind, count]) => `${count} ${COUNTED[kind]?.[count === 1 ? 0 : 1] ?? kind}`);
  const reading = all.filter((one) => one.state === "reading").length;
  const failed = all.filter((one) => one.state === "failed").length;
  if (failed > 0) parts.push(`${failed} not readable`);
  if (reading > 0) parts.push(`${reading} being read`);
  return `${format.counted(all.length, "recording")}: ${parts.join(", ")}`;
}
