/** Which colour and pattern is which class. */

import { look } from "../classes.js";
import { h } from "../dom.js";

export function swatch(name: string): HTMLElement {
  const { light, dark, pattern } = look(name);
  const element = h("span", { class: `swatch ${pattern}`, "aria-hidden": "true" });
  element.style.setProperty("--light", light);
  element.style.setProperty("--dark", dark);
  return element;
}

export function legendItem(name: string, title: string, ...more: (Node | string)[]): HTMLElement {
  return h("li", {}, swatch(name), h("span", {}, title), ...more);
}

/** A swatch of something that is not a class: `free`, `waiting`, `reserved`, `limit`. */
export function legendMark(mark: string, title: string, ...more: (Node | string)[]): HTMLElement {
  return h("li", {}, h("span", { class: `swatch mark-${mark}`, "aria-hidden": "true" }), h("span", {}, title), ...more);
}
