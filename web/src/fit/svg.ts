/** Making elements of a drawing. As with `h`, text goes in as text. */

import { tied } from "../dom.js";

const SPACE = "http://www.w3.org/2000/svg";

export function svg(
  tag: string,
  properties: Record<string, string | number>,
  ...children: (SVGElement | string)[]
): SVGElement {
  const element = document.createElementNS(SPACE, tag) as SVGElement;
  for (const [name, value] of Object.entries(properties)) {
    element.setAttribute(name, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
  }
  element.append(...children.map((child) => (typeof child === "string" ? tied(child) : child)));
  return element;
}
