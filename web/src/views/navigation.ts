/** Links to the parts of a page; the one in sight is marked. */

import { h } from "../dom.js";
import type { Part } from "./section.js";

export function fillNavigation(navigation: HTMLElement, parts: Part[]): void {
  const links = parts.map((part) => h("a", { href: `#${part.id}` }, part.short));
  navigation.replaceChildren(...links);
  const seen = new Map<Element, boolean>();
  const watch = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) seen.set(entry.target, entry.isIntersecting);
      const at = parts.findIndex((part) => seen.get(part.element));
      links.forEach((link, index) =>
        index === at ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current"),
      );
    },
    { rootMargin: "-25% 0px -60% 0px" },
  );
  for (const part of parts) watch.observe(part.element);
}
