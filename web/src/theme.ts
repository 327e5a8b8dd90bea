/** Light, dark, or what the system says; kept for the next page where the browser allows it. */

import { choice } from "./dom.js";
import { isDark, setDark } from "./paint.js";
import { redrawAll } from "./surface.js";

type Theme = "auto" | "light" | "dark";

const KEY = "gpuheap-theme";
const listeners = new Set<() => void>();
let theme: Theme = "auto";
let onPaper = false;

/** Calls `listener` whenever the colours changed. */
export function onTheme(listener: () => void): void {
  listeners.add(listener);
}

export function startTheme(): void {
  theme = stored();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

/** Paper is white. */
export function setOnPaper(value: boolean): void {
  onPaper = value;
  apply();
}

export function themeChoice(): HTMLElement {
  const options = [
    { value: "auto" as const, text: "Auto" },
    { value: "light" as const, text: "Light" },
    { value: "dark" as const, text: "Dark" },
  ];
  return choice<Theme>("Theme", options, theme, (chosen) => {
    theme = chosen;
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // Pages from files may have no storage: the choice holds until the page is closed.
    }
    apply();
  }).element;
}

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "auto";
  } catch {
    return "auto";
  }
}

function apply(): void {
  const system = matchMedia("(prefers-color-scheme: dark)").matches;
  const dark = !onPaper && (theme === "dark" || (theme === "auto" && system));
  document.documentElement.toggleAttribute("data-dark", dark);
  if (dark === isDark() && document.documentElement.hasAttribute("data-themed")) return;
  document.documentElement.setAttribute("data-themed", "");
  setDark(dark);
  redrawAll();
  for (const listener of listeners) listener();
}
