/** A canvas that is as sharp as the screen, drawn only while it can be seen. */

import { h } from "./dom.js";

export interface Pen {
  context: CanvasRenderingContext2D;
  width: number;
  height: number;
  /** Device pixels a pixel. */
  ratio: number;
}

const surfaces = new Set<Surface>();
let printing = false;

/** Whether what is drawn goes to paper. */
export function isPrinting(): boolean {
  return printing;
}

/** Draws everything again: the theme changed. */
export function redrawAll(): void {
  for (const surface of surfaces) surface.invalidate();
}

/** Draws everything at once, also what is out of sight, sharp enough for paper. */
export function setPrinting(value: boolean): void {
  printing = value;
  for (const surface of surfaces) {
    if (printing) surface.drawNow();
    else surface.invalidate();
  }
}

export class Surface {
  readonly canvas: HTMLCanvasElement;
  #height: number;
  #seen = false;
  #stale = true;
  #scheduled = false;

  constructor(
    label: string,
    height: number,
    private readonly draw: (pen: Pen) => void,
  ) {
    this.#height = height;
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    surfaces.add(this);
    new ResizeObserver(() => this.invalidate()).observe(this.canvas);
    const near = { rootMargin: "200px" };
    new IntersectionObserver((entries) => {
      this.#seen = entries[entries.length - 1].isIntersecting;
      if (this.#seen && this.#stale) this.#schedule();
    }, near).observe(this.canvas);
  }

  get height(): number {
    return this.#height;
  }

  set height(value: number) {
    if (value === this.#height) return;
    this.#height = value;
    this.canvas.style.height = `${value}px`;
    this.invalidate();
  }

  get width(): number {
    return this.canvas.clientWidth;
  }

  set label(text: string) {
    this.canvas.setAttribute("aria-label", text);
  }

  invalidate(): void {
    this.#stale = true;
    if (this.#seen) this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (this.#stale) this.drawNow();
    });
  }

  drawNow(): void {
    // What is drawn may need another height than what was there: then it is drawn once more.
    for (let times = 0; times < 2; times++) {
      const height = this.#height;
      this.#drawOnce();
      if (height === this.#height) return;
    }
  }

  #drawOnce(): void {
    const width = this.canvas.clientWidth;
    const context = this.canvas.getContext("2d");
    if (width === 0 || !context) return;
    this.#stale = false;
    const ratio = printing ? Math.max(2, devicePixelRatio) : devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(this.#height * ratio)];
    if (this.canvas.width !== wide) this.canvas.width = wide;
    if (this.canvas.height !== high) this.canvas.height = high;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.#height);
    this.draw({ context, width, height: this.#height, ratio });
  }
}
