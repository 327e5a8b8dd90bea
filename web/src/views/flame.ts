/** The flame graph (icicle) of the memory held at the picked moment. */

import type { App } from "../app.js";
import { button, check, choice, h, tied } from "../dom.js";
import { both, type Layout, layout, matchedBytes, type Rect } from "../flamelayout.js";
import { FlameTree, kindOf, type Weights } from "../flametree.js";
import * as format from "../format.js";
import { MOMENTS } from "../model.js";
import type { Moment } from "../source.js";
import { Surface } from "../surface.js";
import { changeTint, classTint, type Face, paintRects, ROW } from "./flame/paint.js";
import { Names } from "./flame/names.js";
import { largestTable } from "./flame/table.js";
import { part, type Part } from "./section.js";
import { eventText } from "./timeline/change.js";

type Shape = "stack" | "class";

export function flameView(app: App): Part {
  return new View(app).part();
}

class View {
  readonly #names;
  readonly #trees = new Map<string, FlameTree>();
  readonly #surface: Surface;
  readonly #frame: HTMLElement;
  readonly #info = h("p", { class: "info", "aria-live": "off" });
  readonly #crumbs = h("nav", { class: "crumbs", "aria-label": "Zoomed into" });
  readonly #found = h("output", { class: "found" });
  readonly #note = h("p", { class: "note", hidden: true });
  readonly #search: HTMLInputElement;
  readonly #against: HTMLSelectElement;
  #shape: Shape = "stack";
  #folded = true;
  #query = "";
  #other: Moment | null = null;
  #zoom = 0;
  #focus = -1;
  #hover = -1;
  #stale = true;
  #now!: Weights;
  #then: Weights | null = null;
  #extent!: Float64Array;
  #rank!: Float64Array;
  #children!: { starts: Int32Array; list: Int32Array };
  #matched: Uint8Array | null = null;
  #selected: Uint8Array | null = null;
  /** What `#layout` is of. */
  #arranged = "";
  #layout: Layout = { rects: [], rows: 0, deeper: false };

  constructor(private readonly app: App) {
    this.#names = new Names(app.model);
    this.#surface = new Surface("Flame graph", 200, (pen) => this.#draw(pen));
    this.#search = h("input", {
      type: "search",
      placeholder: "Search frames",
      "aria-label": "Search frames in the flame graph",
      oninput: () => this.#setQuery(this.#search.value),
    });
    this.#against = h("select", {
      "aria-label": "Compare the picked moment with",
      onchange: () => void this.#compare(),
    });
    this.#frame = h(
      "div",
      {
        class: "flame",
        tabindex: 0,
        role: "group",
        "aria-roledescription": "flame graph",
        onkeydown: (event) => this.#key(event as KeyboardEvent),
        onfocus: () => this.#setFocus(this.#focus < 0 ? this.#zoom : this.#focus),
        onblur: () => this.#surface.invalidate(),
      },
      this.#surface.canvas,
    );
    this.#pointer();
    this.#options();
    app.moment.on(() => {
      this.#options();
      this.#reset();
    });
    app.pinned.on(() => this.#options());
    app.site.on(() => this.#reset());
  }

  part(): Part {
    const { app } = this;
    const shape = choice<Shape>(
      "By",
      [
        { value: "stack", text: "Stack" },
        { value: "class", text: "Class, then stack" },
      ],
      this.#shape,
      (chosen) => this.#change(() => (this.#shape = chosen)),
    );
    const fold = check("Library frames", !this.#folded, (shown) => this.#change(() => (this.#folded = !shown)));
    const pin = button("Pin this moment", () => {
      app.pinned.set(app.moment.value);
      app.announce("Pinned: choose it under “compare with” at another moment");
    });
    const tools = h(
      "div",
      { class: "tools" },
      shape.element,
      fold,
      this.#search,
      this.#found,
      h("label", { class: "group" }, "compare with ", this.#against),
      pin,
    );
    return part(
      "flame",
      "Flame graph",
      "Who holds the memory",
      tools,
      this.#crumbs,
      this.#frame,
      this.#info,
      this.#note,
      largestTable(this.app, () => {
        this.#weigh();
        return { tree: this.#tree, weights: this.#now, starts: this.#children.starts, names: this.#names };
      }),
    );
  }

  get #tree(): FlameTree {
    const key = `${this.#shape}/${this.#folded}`;
    let tree = this.#trees.get(key);
    if (!tree) {
      tree = new FlameTree(this.app.model, this.#shape === "class", this.#folded);
      this.#trees.set(key, tree);
    }
    return tree;
  }

  #change(change: () => void): void {
    change();
    this.#zoom = 0;
    this.#focus = this.#hover = -1;
    this.#reset();
  }

  #reset(): void {
    this.#stale = true;
    this.#surface.invalidate();
  }

  /** Weighs the tree anew, if anything changed since the last time. */
  #weigh(): void {
    if (!this.#stale) return;
    this.#stale = false;
    this.#arranged = "";
    const { app } = this;
    const moment = app.moment.value;
    const tree = this.#tree;
    // The other moment may add nodes: it goes first.
    if (this.#other) tree.weigh(this.#other);
    this.#now = tree.weigh(moment);
    this.#then = this.#other ? tree.weigh(this.#other) : null;
    const { bytes } = this.#now;
    const then = this.#then;
    this.#extent = then ? both(tree, this.#now, then) : bytes;
    this.#rank = then ? bytes.map((now, node) => Math.abs(now - then.bytes[node])) : bytes;
    this.#children = tree.children();
    if (!(this.#extent[this.#zoom] > 0)) this.#zoom = 0;
    this.#matched = this.#names.matches(tree, this.#query);
    this.#selected = this.#siteNodes(tree);
    this.#say();
  }

  /** Nodes on the way to the blocks of the selected site. */
  #siteNodes(tree: FlameTree): Uint8Array | null {
    const { site, model, moment } = this.app;
    if (site.value < 0) return null;
    const marked = new Uint8Array(tree.length);
    const { memory } = moment.value;
    const nodes = tree.nodesOf(memory);
    memory.sorts.place.forEach((place, sort) => {
      if (model.tree.site[place] === site.value) marked[nodes[sort]] = 1;
    });
    return marked;
  }

  /** Lays the tree out as it is now: keys do not wait for the next frame. */
  #arrange(width: number): void {
    this.#weigh();
    if (this.#arranged === `${this.#zoom}/${width}`) return;
    this.#arranged = `${this.#zoom}/${width}`;
    this.#layout = layout(this.#tree, this.#children, this.#extent, this.#rank, this.#zoom, width);
  }

  #draw(pen: Parameters<ConstructorParameters<typeof Surface>[2]>[0]): void {
    this.#arrange(pen.width);
    const height = Math.max(3, this.#layout.rows) * ROW;
    if (height !== this.#surface.height) {
      this.#surface.height = height;
      return;
    }
    const most = this.#then ? Math.abs(this.#rank[this.#zoom]) : 0;
    const biggest = this.#then
      ? this.#layout.rects.reduce((top, { node }) => Math.max(top, this.#rank[node]), most)
      : 0;
    const focused = document.activeElement === this.#frame ? this.#focus : -1;
    paintRects(pen, this.#layout.rects, (rect) => this.#face(rect, biggest), focused, this.#hover);
    if (this.#layout.rects.length === 0) {
      pen.context.fillStyle = "#888";
      pen.context.font = "13px system-ui, sans-serif";
      pen.context.fillText("Nothing is allocated at this moment", 8, 24);
    }
  }

  #face({ node }: Rect, biggest: number): Face {
    const { model } = this.app;
    const what = this.#tree.what[node];
    const name = this.#names.short(what);
    const strong = this.#matched?.[node] === 1 || this.#selected?.[node] === 1;
    const dim = this.#matched !== null && this.#matched[node] === 0 && !strong;
    if (this.#then) {
      const change = this.#now.bytes[node] - this.#then.bytes[node];
      const sign = change === 0 ? "=" : format.change(change);
      return { color: changeTint(change, biggest), text: `${sign}  ${name}`, dim, strong };
    }
    const kind = kindOf(what);
    const main = model.classes[this.#now.mainClass[node]]?.name ?? "unknown";
    const color = kind.is === "root" || kind.is === "not-kept" ? classTint("rounding") : classTint(main);
    return { color, text: `${name}  ${format.bytes(this.#now.bytes[node])}`, dim, strong };
  }

  /** Everything about a node in one sentence. */
  #sentence(node: number): string {
    const { model } = this.app;
    const bytes = this.#now.bytes[node] ?? 0;
    const blocks = this.#now.blocks[node] ?? 0;
    const what = this.#tree.what[node];
    const parts = [
      this.#names.full(what),
      format.bytes(bytes),
      `${format.share(bytes, this.#now.bytes[0])} of allocated`,
    ];
    if (kindOf(what).is !== "not-kept") parts.push(format.counted(blocks, "block"));
    if (this.#then) {
      const before = this.#then.bytes[node];
      parts.push(`${format.change(bytes - before)} against ${format.bytes(before)}`);
    } else if (kindOf(what).is === "frame") {
      parts.push(`mostly ${model.classes[this.#now.mainClass[node]]?.title ?? "unknown"}`);
    }
    return parts.join(" · ");
  }

  #say(): void {
    const tree = this.#tree;
    const { moment } = this.app;
    const other = this.#other && {
      held: format.bytes(this.#then?.bytes[0] ?? 0),
      when: momentText(this.app, this.#other),
    };
    const against = other ? `, compared with ${other.held} ${other.when}` : "";
    const sentence = `${format.bytes(this.#now.bytes[0])} held ${momentText(this.app, moment.value)}${against}`;
    this.#frame.setAttribute(
      "aria-label",
      `Flame graph: ${sentence}. Arrow keys move, Enter zooms in, Escape zooms out`,
    );
    this.#surface.label = `Flame graph: ${sentence}`;
    this.#info.textContent = tied(this.#hover >= 0 ? this.#sentence(this.#hover) : format.capitalized(sentence));
    const exact = moment.value.exact && (this.#other?.exact ?? true);
    this.#note.hidden = exact;
    this.#note.textContent = exact
      ? ""
      : "This file keeps the largest blocks only at this moment; the sums are exact, and `gpuheap serve FILE` shows every block";
    if (this.#matched) {
      const found = matchedBytes(tree, this.#now.bytes, this.#matched);
      this.#found.textContent = `${format.bytes(found)} (${format.share(found, this.#now.bytes[0])}) match`;
    } else this.#found.textContent = "";
    this.#showCrumbs();
  }

  #showCrumbs(): void {
    const path = this.#tree.path(this.#zoom);
    this.#crumbs.hidden = path.length < 2;
    const shown = path.length > 8 ? [path[0], ...path.slice(-7)] : path;
    this.#crumbs.replaceChildren(
      ...shown.flatMap((node, index): (Node | string)[] => {
        const name = format.clean(this.#names.short(this.#tree.what[node]), 40);
        if (index === shown.length - 1) return [h("span", { "aria-current": "true" }, name)];
        return [button(name, () => this.#zoomTo(node), { class: "link" }), " › "];
      }),
    );
  }

  #zoomTo(node: number): void {
    this.#zoom = node;
    this.#focus = node;
    this.#hover = -1;
    this.#say();
    this.#surface.invalidate();
  }

  #setQuery(query: string): void {
    this.#query = query;
    this.#weigh();
    this.#matched = this.#names.matches(this.#tree, query);
    this.#say();
    this.#surface.invalidate();
  }

  #setFocus(node: number): void {
    this.#weigh();
    this.#focus = node;
    const sentence = this.#sentence(node);
    this.#info.textContent = tied(sentence);
    this.app.announce(sentence);
    this.#surface.invalidate();
  }

  /** The moments to compare with. */
  #options(): void {
    const { model, pinned } = this.app;
    const chosen = this.#against.value;
    const options = [h("option", { value: "" }, "nothing")];
    for (const { name, tick } of model.moments) {
      if (MOMENTS[name]) options.push(h("option", { value: String(tick) }, MOMENTS[name].title));
    }
    options.push(h("option", { value: "0" }, "Start"));
    if (pinned.value) {
      options.push(h("option", { value: `pin ${pinned.value.tick}` }, `pinned, ${eventText(pinned.value.tick)}`));
    }
    this.#against.replaceChildren(...options);
    this.#against.value = options.some((option) => option.value === chosen) ? chosen : "";
  }

  async #compare(): Promise<void> {
    const wanted = this.#against.value;
    if (wanted === "") this.#other = null;
    else if (wanted.startsWith("pin")) this.#other = this.app.pinned.value;
    else this.#other = await this.app.source.moment(Number(wanted));
    this.#reset();
  }

  #pointer(): void {
    const { canvas } = this.#surface;
    const hit = (event: MouseEvent): number => {
      const row = Math.floor(event.offsetY / ROW);
      const x = event.offsetX;
      const rect = this.#layout.rects.find((one) => one.row === row && x >= one.x && x < one.x + one.width);
      return rect?.node ?? -1;
    };
    canvas.addEventListener("mousemove", (event) => {
      const node = hit(event);
      if (node === this.#hover) return;
      this.#hover = node;
      canvas.style.cursor = node < 0 ? "default" : "pointer";
      if (node >= 0) this.#info.textContent = this.#sentence(node);
      this.#surface.invalidate();
    });
    canvas.addEventListener("mouseleave", () => {
      this.#hover = -1;
      this.#surface.invalidate();
    });
    canvas.addEventListener("click", (event) => {
      const node = hit(event);
      if (node >= 0) this.#zoomTo(node === this.#zoom ? Math.max(0, this.#tree.parent[node]) : node);
    });
  }

  #key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    this.#arrange(this.#surface.width);
    const { rects } = this.#layout;
    if (rects.length === 0) return;
    const focus = this.#focus < 0 ? this.#zoom : this.#focus;
    const at = rects.find((rect) => rect.node === focus) ?? rects[0];
    const siblings = rects.filter((rect) => rect.row === at.row).sort((a, b) => a.x - b.x);
    const index = siblings.indexOf(at);
    let to: Rect | undefined;
    if (event.key === "ArrowRight") to = siblings[index + 1];
    else if (event.key === "ArrowLeft") to = siblings[index - 1];
    else if (event.key === "ArrowUp") to = rects.find((rect) => rect.node === this.#tree.parent[at.node]);
    else if (event.key === "ArrowDown") {
      to = rects.filter((rect) => this.#tree.parent[rect.node] === at.node).sort((a, b) => a.x - b.x)[0];
    } else if (event.key === "Enter" || event.key === " ") this.#zoomTo(at.node);
    else if (event.key === "Escape" || event.key === "Backspace")
      this.#zoomTo(Math.max(0, this.#tree.parent[this.#zoom]));
    else if (event.key === "Home") this.#zoomTo(0);
    else return;
    event.preventDefault();
    if (to) this.#setFocus(to.node);
  }
}

/** `at the peak of allocated memory`, `after event 1,234`. */
export function momentText(app: App, moment: Moment): string {
  const name = app.model.momentName(moment.tick);
  return name && MOMENTS[name] ? MOMENTS[name].sentence : eventText(moment.tick);
}
