/** The segment map: every segment and block of the picked moment, to scale. */

import type { App } from "../app.js";
import { after } from "../columns.js";
import { button, check, choice, h, tied } from "../dom.js";
import * as format from "../format.js";
import { type Bar, figures, figuresText, type Group, groups, type Row, rowBytes, rows } from "../maplayout.js";
import { pieces, type Piece, type Range, type Ranges, rangesAt } from "../ranges.js";
import { isPrinting, Surface } from "../surface.js";
import { legendItem, legendMark } from "./legend.js";
import { pieceDetail, pieceText } from "./map/detail.js";
import { paintRows, ROW } from "./map/paint.js";
import { momentText } from "./flame.js";
import { part, type Part } from "./section.js";

type Order = "address" | "size";

/** Rows that everything takes at first. */
const WANTED_ROWS = 18;
/** All rows are shown up to this height; where there are more, half a row at the end says that it goes on. */
const MOST_HEIGHT = 640;
const CUT_HEIGHT = 470;
/** Rows that fit on a sheet of paper. */
const PAPER_HEIGHT = 900;
/** More rows than this help nobody. */
const MOST_ROWS = 20_000;

export function mapView(app: App): Part {
  return new View(app).part();
}

class View {
  readonly #surface: Surface;
  readonly #spacer = h("div", { class: "spacer" });
  readonly #scroll: HTMLElement;
  readonly #figures = h("p", { class: "figures" });
  readonly #info = h("p", { class: "info" });
  readonly #crumbs = h("nav", { class: "crumbs", "aria-label": "Zoomed into", hidden: true });
  readonly #detail = h("div", { class: "detail", hidden: true });
  readonly #more = h("p", { class: "faint", hidden: true });
  readonly #note = h("p", { class: "note", hidden: true });
  readonly #found = h("output", { class: "found" });
  #order: Order = "address";
  #grouped = true;
  #stale = true;
  #state: Ranges = { ranges: [], strays: 0, waiting: new Set() };
  #pieces = new Map<number, Piece[]>();
  #rows: Row[] = [];
  /** Indices of the ranges in the order in which they are shown. */
  #sequence: number[] = [];
  /** Addresses of the ranges. */
  #starts = new Float64Array(0);
  #laidOut = "";
  /** Bytes a row; 0 for what suits the whole. */
  #scale = 0;
  /** The address of the range that is shown alone; -1 for all. */
  #alone = -1;
  #chosen = -1;
  #hover = -1;

  constructor(private readonly app: App) {
    this.#surface = new Surface("Segment map", 200, (pen) => this.#draw(pen));
    this.#scroll = h(
      "div",
      {
        class: "map",
        tabindex: 0,
        role: "group",
        "aria-roledescription": "segment map",
        onkeydown: (event) => this.#key(event as KeyboardEvent),
        onscroll: () => this.#surface.invalidate(),
        onblur: () => this.#surface.invalidate(),
      },
      this.#surface.canvas,
      this.#spacer,
    );
    this.#pointer();
    app.moment.on(() => {
      this.#stale = true;
      this.#surface.invalidate();
    });
    app.site.on(() => this.#surface.invalidate());
  }

  part(): Part {
    const search = h("input", {
      type: "search",
      placeholder: "Address, such as 0x7f…",
      "aria-label": "Find an address",
    });
    const form = h(
      "form",
      {
        class: "group",
        onsubmit: (event) => {
          event.preventDefault();
          this.#find(search.value);
        },
      },
      search,
      h("button", {}, "Find"),
      this.#found,
    );
    const order = choice<Order>(
      "Sort by",
      [
        { value: "address", text: "Address" },
        { value: "size", text: "Size" },
      ],
      this.#order,
      (chosen) => {
        this.#order = chosen;
        this.#relayout();
      },
    );
    const grouped = check("Group by pool and stream", this.#grouped, (on) => {
      this.#grouped = on;
      this.#relayout();
    });
    const zoom = h(
      "span",
      { class: "group" },
      button("−", () => this.#rescale(2), { "aria-label": "Smaller", title: "Smaller" }),
      button("+", () => this.#rescale(0.5), { "aria-label": "Larger", title: "Larger" }),
    );
    const tools = h("div", { class: "tools" }, order.element, grouped, zoom, form);
    return part(
      "map",
      "Segments",
      "Segment map",
      tools,
      this.#figures,
      this.#crumbs,
      this.#scroll,
      this.#more,
      this.#info,
      this.#note,
      this.#detail,
      this.#legend(),
    );
  }

  #legend(): HTMLElement {
    const { model } = this.app;
    const items = model.order
      .filter((index) => index !== model.classes.length - 1 && model.timeline.classes[index].some((bytes) => bytes > 0))
      .map((index) => legendItem(model.classes[index].name, model.classes[index].title));
    items.push(legendMark("free", "free"), legendMark("waiting", "waits for another stream"));
    return h("ul", { class: "legend" }, ...items);
  }

  #relayout(): void {
    this.#laidOut = "";
    this.#surface.invalidate();
  }

  #rescale(factor: number): void {
    const ranges = this.#shown();
    const now = this.#scale || this.#fitting(ranges);
    const total = figures(ranges).reserved;
    const next = now * factor;
    if (factor < 1 && total / next > MOST_ROWS / 4) return;
    if (factor > 1 && now >= total) return;
    this.#scale = next;
    this.#relayout();
  }

  #shown(): Range[] {
    const { ranges } = this.#state;
    return this.#alone < 0 ? ranges : ranges.filter((range) => range.address === this.#alone);
  }

  #fitting(ranges: Range[]): number {
    const { reserved: total, largest } = figures(ranges);
    if (this.#alone >= 0) return Math.max(4096, total / Math.min(WANTED_ROWS, Math.max(1, Math.ceil(total / 2 ** 25))));
    return rowBytes(total, largest, WANTED_ROWS);
  }

  #refresh(): void {
    if (!this.#stale) return;
    this.#stale = false;
    const { moment } = this.app;
    const { memory, tick, exact } = moment.value;
    this.#state = rangesAt(memory, tick);
    this.#pieces.clear();
    this.#laidOut = "";
    this.#hover = -1;
    const { ranges, strays } = this.#state;
    if (this.#alone >= 0 && !ranges.some((range) => range.address === this.#alone)) this.#alone = -1;
    this.#starts = Float64Array.from(ranges, (range) => range.address);
    const text = figuresText(ranges);
    const when = momentText(this.app, moment.value);
    this.#figures.textContent = tied(`${format.capitalized(when)}: ${text}`);
    this.#surface.label = `Segment map ${when}: ${text}`;
    this.#scroll.setAttribute("aria-label", `Segment map: ${text}. Arrow keys move, Enter zooms in, Escape zooms out`);
    this.#note.hidden = exact;
    const left = strays > 0 ? `; ${format.counted(strays, "block")} in segments that are not kept are not shown` : "";
    this.#note.textContent = exact
      ? ""
      : `This file keeps the largest blocks and segments only at this moment: what looks free may hold smaller blocks${left}. \`gpuheap serve FILE\` shows all`;
    this.#showCrumbs();
    this.#showDetail();
  }

  #layout(width: number): void {
    const key = `${width} ${isPrinting()}`;
    if (this.#laidOut === key) return;
    this.#laidOut = key;
    const ranges = this.#shown();
    const perRow = this.#scale || this.#fitting(ranges);
    const arranged = this.#arranged();
    this.#sequence = arranged.flatMap((group) => group.ranges);
    this.#rows = ranges.length > 0 ? rows(this.#state.ranges, arranged, perRow, width).slice(0, MOST_ROWS) : [];
    const total = Math.max(2, this.#rows.length) * ROW;
    const height = isPrinting() ? Math.min(PAPER_HEIGHT, total) : total <= MOST_HEIGHT ? total : CUT_HEIGHT;
    this.#more.hidden = total <= height;
    this.#more.textContent = `${format.count(this.#rows.length)} rows: scroll to see all`;
    this.#scroll.style.height = `${height}px`;
    this.#spacer.style.height = `${total - height}px`;
    this.#surface.height = height;
  }

  /** Indices of the ranges that are shown, as groups in their order. */
  #arranged(): Group[] {
    const { ranges } = this.#state;
    const all = ranges.map((_, index) => index);
    if (this.#alone >= 0) {
      const one = all.filter((index) => ranges[index].address === this.#alone);
      return groups(ranges, one, null);
    }
    if (this.#order === "size") all.sort((a, b) => ranges[b].size - ranges[a].size);
    return groups(ranges, all, this.#grouped ? (lane) => this.app.model.laneText(lane) : null);
  }

  #piecesOf = (index: number): Piece[] => {
    let list = this.#pieces.get(index);
    if (!list) {
      list = pieces(this.app.moment.value.memory, this.#state.ranges[index], this.#state.waiting);
      this.#pieces.set(index, list);
    }
    return list;
  };

  #draw(pen: Parameters<ConstructorParameters<typeof Surface>[2]>[0]): void {
    this.#refresh();
    this.#layout(pen.width);
    if (this.#surface.height !== pen.height) return;
    const { app } = this;
    const { memory } = app.moment.value;
    const top = this.#scroll.scrollTop;
    const site = app.site.value;
    paintRows(pen, {
      rows: this.#rows,
      first: Math.floor(top / ROW),
      offset: top % ROW,
      memory,
      model: app.model,
      pieces: this.#piecesOf,
      marked: site < 0 ? null : (row) => app.model.tree.site[memory.sorts.place[memory.sort[row]]] === site,
      chosen: this.#chosen,
      hover: this.#hover,
    });
    if (this.#rows.length === 0) {
      pen.context.fillStyle = "#888";
      pen.context.font = "13px system-ui, sans-serif";
      pen.context.fillText("No segment is reserved at this moment", 4, 20);
    }
  }

  /** The piece at a position of the canvas. */
  #hit(x: number, y: number): { range: number; piece: Piece } | null {
    const row = this.#rows[Math.floor((y + this.#scroll.scrollTop) / ROW)];
    if (!row || "title" in row) return null;
    const bar = row.bars.find((one: Bar) => x >= one.x && x <= one.x + one.width);
    if (!bar) return null;
    const range = this.#state.ranges[bar.range];
    const offset = bar.from + ((x - bar.x) / bar.width) * (bar.to - bar.from);
    return this.#pieceAt(bar.range, range.address + Math.min(offset, bar.to - 1));
  }

  #pieceAt(range: number, address: number): { range: number; piece: Piece } | null {
    const list = this.#piecesOf(range);
    const piece =
      list[
        after(
          Float64Array.from(list, (one) => one.address),
          address,
        ) - 1
      ];
    return piece ? { range, piece } : null;
  }

  #choose(range: number, piece: Piece, say = true): void {
    this.#chosen = piece.address;
    const text = pieceText(this.app, this.app.moment.value.memory, piece, this.#state.ranges[range]);
    this.#info.textContent = tied(text);
    if (say) this.app.announce(text);
    this.#showDetail();
    this.#reveal();
    this.#surface.invalidate();
  }

  #located(address: number): { range: number; piece: Piece } | null {
    const { ranges } = this.#state;
    const index = after(this.#starts, address) - 1;
    const range = ranges[index];
    if (!range || address >= range.address + range.size) return null;
    return this.#pieceAt(index, address);
  }

  #showDetail(): void {
    const at = this.#chosen < 0 ? null : this.#located(this.#chosen);
    this.#detail.hidden = at === null;
    if (!at) return;
    this.#detail.replaceChildren(
      pieceDetail(this.app, this.app.moment.value.memory, at.piece, this.#state.ranges[at.range]),
    );
  }

  /** Scrolls to the chosen piece. */
  #reveal(): void {
    this.#layout(this.#surface.width);
    const at = this.#located(this.#chosen);
    if (!at) return;
    const offset = this.#chosen - this.#state.ranges[at.range].address;
    const row = this.#rows.findIndex(
      (one) => "bars" in one && one.bars.some((bar) => bar.range === at.range && offset >= bar.from && offset < bar.to),
    );
    if (row < 0) return;
    const [top, height] = [this.#scroll.scrollTop, this.#scroll.clientHeight];
    if (row * ROW < top) this.#scroll.scrollTop = row * ROW;
    else if ((row + 1) * ROW > top + height) this.#scroll.scrollTop = (row + 1) * ROW - height;
  }

  #zoomTo(address: number): void {
    this.#alone = address;
    this.#scale = 0;
    this.#scroll.scrollTop = 0;
    this.#showCrumbs();
    this.#relayout();
  }

  #showCrumbs(): void {
    this.#crumbs.hidden = this.#alone < 0;
    if (this.#alone < 0) return;
    const [range] = this.#shown();
    const name = range ? `${format.hex(range.address)}, ${format.bytes(range.size)}` : "";
    this.#crumbs.replaceChildren(
      button("All segments", () => this.#zoomTo(-1), { class: "link" }),
      " › ",
      h("span", { "aria-current": "true" }, name),
    );
  }

  #find(text: string): void {
    this.#refresh();
    const address = format.address(text);
    const at = address === null ? null : this.#located(address);
    if (at) {
      if (this.#alone >= 0) this.#zoomTo(-1);
      this.#choose(at.range, at.piece);
      this.#found.textContent = "found";
      return;
    }
    const why = address === null ? "not an address" : "nothing reserved there at this moment";
    this.#found.textContent = why;
    this.app.announce(why);
  }

  #pointer(): void {
    const { canvas } = this.#surface;
    canvas.addEventListener("mousemove", (event) => {
      const at = this.#hit(event.offsetX, event.offsetY);
      const address = at?.piece.address ?? -1;
      if (address === this.#hover) return;
      this.#hover = address;
      canvas.style.cursor = at ? "pointer" : "default";
      if (at)
        this.#info.textContent = pieceText(
          this.app,
          this.app.moment.value.memory,
          at.piece,
          this.#state.ranges[at.range],
        );
      this.#surface.invalidate();
    });
    canvas.addEventListener("mouseleave", () => {
      this.#hover = -1;
      this.#surface.invalidate();
    });
    canvas.addEventListener("click", (event) => {
      const at = this.#hit(event.offsetX, event.offsetY);
      if (!at) return;
      if (this.#alone < 0) this.#zoomTo(this.#state.ranges[at.range].address);
      this.#choose(at.range, at.piece);
    });
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== event.currentTarget) return;
    this.#refresh();
    const { ranges } = this.#state;
    if (ranges.length === 0) return;
    this.#layout(this.#surface.width);
    const shown = this.#sequence;
    const at = this.#chosen < 0 ? null : this.#located(this.#chosen);
    const place = at ? shown.indexOf(at.range) : -1;
    const first = (position: number, last = false) => {
      const range = shown[Math.min(shown.length - 1, Math.max(0, position))];
      const list = this.#piecesOf(range);
      this.#choose(range, last ? list[list.length - 1] : list[0]);
    };
    const list = at ? this.#piecesOf(at.range) : [];
    const index = at ? list.findIndex((piece) => piece.address === at.piece.address) : -1;
    if (event.key === "ArrowRight") {
      if (at && index + 1 < list.length) this.#choose(at.range, list[index + 1]);
      else first(place + 1);
    } else if (event.key === "ArrowLeft") {
      if (at && index > 0) this.#choose(at.range, list[index - 1]);
      else first(place - 1, true);
    } else if (event.key === "ArrowDown") first(place + 1);
    else if (event.key === "ArrowUp") first(place - 1);
    else if (event.key === "Enter" && at) this.#zoomTo(ranges[at.range].address);
    else if (event.key === "Escape") this.#zoomTo(-1);
    else if (event.key === "+" || event.key === "=") this.#rescale(0.5);
    else if (event.key === "-") this.#rescale(2);
    else return;
    event.preventDefault();
  }
}
