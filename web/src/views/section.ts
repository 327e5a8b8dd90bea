/** A part of the page. */

import { h } from "../dom.js";

export interface Part {
  id: string;
  /** In the navigation. */
  short: string;
  element: HTMLElement;
}

export function part(id: string, short: string, title: string, ...content: (Node | null)[]): Part {
  const heading = h("h2", { id: `${id}-heading` }, title);
  const element = h("section", { id, tabindex: -1, "aria-labelledby": heading.id }, heading, ...content);
  return { id, short, element };
}
