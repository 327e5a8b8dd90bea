/** Every site of the program: what it holds and how that changes. */

import type { App } from "../app.js";
import { button, h } from "../dom.js";
import * as format from "../format.js";
import { MOMENTS } from "../model.js";
import type { Site } from "../page.js";
import { swatch } from "./legend.js";
import { part, type Part } from "./section.js";

const PAGE = 100;

interface Column {
  title: string;
  number: boolean;
  value: (site: number) => number | string | null;
  text: (site: number) => string;
}

export function sitesView(app: App): Part {
  if (app.model.sites.length === 0) return part("sites", "Sites", "Sites", h("p", {}, "No memory was allocated"));
  return new View(app).part();
}

class View {
  readonly #columns: Column[];
  readonly #heads: HTMLTableCellElement[];
  readonly #body = h("tbody");
  readonly #count = h("output", { class: "found" });
  readonly #pager = h("div", { class: "tools pager" });
  readonly #note = h("p", { class: "note", hidden: true });
  #now: Float64Array;
  /** The class of most of what each site holds at the picked moment. */
  #classes: number[];
  #order: number[] = [];
  #sorted = 1;
  #descending = true;
  #filter = "";
  #page = 0;
  #texts: string[] | null = null;

  constructor(private readonly app: App) {
    const { model } = app;
    this.#now = new Float64Array(model.sites.length);
    this.#classes = model.sites.map((site) => site.class);
    this.#columns = this.#made();
    this.#heads = this.#columns.map((column, index) => {
      const press = button(column.title, () => this.#sortBy(index));
      return h("th", { scope: "col", class: column.number ? "number" : "" }, press);
    });
    app.moment.on(() => {
      this.#measure();
      this.#sort();
      this.#show();
    });
    app.site.on((site) => this.#follow(site));
    this.#measure();
    this.#sort();
    this.#show();
  }

  part(): Part {
    const filter = h("input", {
      type: "search",
      placeholder: "Filter by file, function, class",
      "aria-label": "Filter sites",
      oninput: () => {
        this.#filter = filter.value;
        this.#page = 0;
        this.#sort();
        this.#show();
      },
    });
    const none = button("Select none", () => this.app.site.set(-1));
    none.hidden = this.app.site.value < 0;
    this.app.site.on((site) => (none.hidden = site < 0));
    const table = h(
      "table",
      { class: "sites" },
      h("caption", { class: "unseen" }, "Sites"),
      h("thead", {}, h("tr", {}, ...this.#heads)),
      this.#body,
    );
    return part(
      "sites",
      "Sites",
      "Sites",
      h("div", { class: "tools" }, filter, this.#count, none),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of sites" }, table),
      this.#pager,
      this.#note,
    );
  }

  #made(): Column[] {
    const { model } = this.app;
    const of = (site: number): Site => model.sites[site];
    const bytes = (title: string, value: (site: number) => number | null): Column => ({
      title,
      number: true,
      value,
      text: (site) => {
        const found = value(site);
        return found === null ? "–" : format.bytes(found);
      },
    });
    const columns: Column[] = [
      {
        title: "site",
        number: false,
        value: (site) => model.siteText(site, true),
        text: (site) => model.siteText(site),
      },
      bytes("held now", (site) => this.#now[site]),
    ];
    model.moments.forEach(({ name }, index) => {
      if (name !== "peak_reserved" && MOMENTS[name])
        columns.push(bytes(titleAt(name), (site) => of(site).at[index] ?? 0));
    });
    columns.push(bytes("most ever", (site) => of(site).most));
    columns.push({
      title: "blocks",
      number: true,
      value: (site) => of(site).count,
      text: (site) => format.count(of(site).count),
    });
    const times = model.hasTimes;
    const life = (site: number) => (times ? of(site).lifetime_us : of(site).lifetime_events);
    columns.push({
      title: "median life",
      number: true,
      // A block that never died outlived all that did.
      value: (site) => life(site) ?? (of(site).kept > 0 ? Number.POSITIVE_INFINITY : null),
      text: (site) => {
        const found = life(site);
        if (found === null) return of(site).kept > 0 ? "kept" : "–";
        return times ? format.duration(found) : format.counted(found, "event");
      },
    });
    columns.push({
      title: "each step",
      number: true,
      value: (site) => of(site).growth,
      text: (site) => {
        const { growth } = of(site);
        return growth === null ? "–" : growth === 0 ? "0 B" : format.change(growth);
      },
    });
    columns.push({
      title: "class",
      number: false,
      value: (site) => model.classes[this.#classes[site]]?.title ?? "",
      text: (site) => model.classes[this.#classes[site]]?.title ?? "unknown",
    });
    return columns;
  }

  /** What each site holds at the picked moment. */
  #measure(): void {
    const { model, moment } = this.app;
    const { memory, tick, exact } = moment.value;
    const width = model.classes.length;
    const held = new Float64Array(model.sites.length);
    const byClass = new Float64Array(model.sites.length * width);
    const { place, size } = memory.sorts;
    for (const row of memory.held(tick)) {
      const sort = memory.sort[row];
      const site = model.tree.site[place[sort]] ?? -1;
      if (site < 0) continue;
      held[site] += size[sort];
      byClass[site * width + memory.classOf[sort]] += size[sort];
    }
    this.#classes = model.sites.map((site, index) => {
      const own = byClass.subarray(index * width, (index + 1) * width);
      const most = own.reduce((best, bytes, at) => (bytes > own[best] ? at : best), 0);
      return own[most] > 0 ? most : site.class;
    });
    this.#texts = null;
    const named = model.moments.findIndex((one) => one.tick === tick);
    this.#note.hidden = exact || named >= 0;
    this.#note.textContent = this.#note.hidden
      ? ""
      : "Held now: only blocks that this file keeps are counted at this moment";
    if (named >= 0) {
      this.#now = Float64Array.from(model.sites, (site) => site.at[named] ?? 0);
      return;
    }
    this.#now = held;
  }

  #sortBy(index: number): void {
    if (this.#sorted === index) this.#descending = !this.#descending;
    else {
      this.#sorted = index;
      this.#descending = this.#columns[index].number;
    }
    this.#page = 0;
    this.#sort();
    this.#show();
    this.app.announce(`Sorted by ${this.#columns[index].title}, ${this.#descending ? "largest" : "smallest"} first`);
  }

  #sort(): void {
    const column = this.#columns[this.#sorted];
    const keys = this.app.model.sites.map((_, site) => column.value(site));
    const sign = this.#descending ? -1 : 1;
    this.#order = this.#matching().sort((a, b) => {
      const [left, right] = [keys[a], keys[b]];
      // What is not known stays at the end.
      if (left === null || right === null) return Number(left === null) - Number(right === null) || a - b;
      const order = typeof left === "number" ? left - (right as number) : left < right ? -1 : Number(left > right);
      return order * sign || a - b;
    });
  }

  #matching(): number[] {
    const { model } = this.app;
    const all = model.sites.map((_, site) => site);
    const words = this.#filter.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return all;
    this.#texts ??= model.sites.map((site, index) => {
      const text = `${site.file.slice(-1000)}:${site.line} ${site.function.slice(0, 1000)} ${site.label.slice(0, 1000)}`;
      return `${text} ${model.classes[this.#classes[index]]?.title ?? ""}`.toLowerCase();
    });
    const texts = this.#texts;
    return all.filter((site) => words.every((word) => texts[site].includes(word)));
  }

  #follow(site: number): void {
    const at = this.#order.indexOf(site);
    if (at >= 0) this.#page = Math.floor(at / PAGE);
    this.#show();
  }

  #show(): void {
    this.#heads.forEach((head, index) => {
      const sorted = index === this.#sorted;
      head.setAttribute("aria-sort", sorted ? (this.#descending ? "descending" : "ascending") : "none");
    });
    const pages = Math.max(1, Math.ceil(this.#order.length / PAGE));
    this.#page = Math.min(this.#page, pages - 1);
    const shown = this.#order.slice(this.#page * PAGE, (this.#page + 1) * PAGE);
    const focused = this.#body.contains(document.activeElement)
      ? document.activeElement?.getAttribute("data-site")
      : null;
    this.#body.replaceChildren(...shown.map((site) => this.#row(site)));
    if (focused) this.#body.querySelector<HTMLElement>(`[data-site="${focused}"]`)?.focus({ preventScroll: true });
    this.#count.textContent = format.counted(this.#order.length, "site");
    this.#pager.hidden = pages < 2;
    if (pages < 2) return;
    const turn = (by: number) => {
      this.#page += by;
      this.#show();
    };
    const before = button("Previous", () => turn(-1));
    const next = button("Next", () => turn(1));
    before.disabled = this.#page === 0;
    next.disabled = this.#page === pages - 1;
    this.#pager.replaceChildren(before, h("span", {}, `page ${this.#page + 1} of ${pages}`), next);
  }

  #row(site: number): HTMLElement {
    const { app } = this;
    const chosen = app.site.value === site;
    const cells = this.#columns.map((column) => {
      const text = column.text(site);
      if (column.number) return h("td", { class: "number" }, text);
      if (column.title === "class") {
        return h("td", {}, swatch(app.model.classes[this.#classes[site]]?.name ?? "unknown"), text);
      }
      const select = button(text, () => app.site.set(chosen ? -1 : site), {
        class: "link",
        "aria-pressed": String(chosen),
        "data-site": site,
        title: app.model.siteText(site, true),
      });
      return h("td", {}, select);
    });
    return h("tr", { class: chosen ? "chosen" : "" }, ...cells);
  }
}

function titleAt(name: "peak" | "oom" | "end" | "peak_reserved"): string {
  return { peak: "at peak", oom: "at failure", end: "at end", peak_reserved: "at peak reserved" }[name];
}
