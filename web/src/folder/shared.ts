/** What the parts of the folder's page show alike. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { part } from "../views/section.js";
import type { Measure } from "./data.js";

const MARKS: Record<string, string> = {
  healthy: "✓",
  leak: "↗",
  sawtooth: "⋀",
  fragmentation: "▦",
  stranded: "⊘",
  oom: "✕",
};

export function badge(kind: string, title: string): HTMLElement {
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, MARKS[kind] ?? "•"), title);
}

/** The headline without the kind, which the badge says already. */
export function plain(title: string, headline: string): string {
  const text = format.clean(headline);
  if (!text.toLowerCase().startsWith(title.toLowerCase())) return text;
  return format.capitalized(text.slice(title.length).replace(/^[:,. ]+/, ""));
}

/** A bar as long as its part of the whole. */
export function bar(share: number, kind = ""): HTMLElement {
  const made = h("span", { class: `bar-of ${kind}`, "aria-hidden": "true" });
  const filled = h("span");
  filled.style.setProperty("width", `${Math.min(100, Math.max(0, share * 100)).toFixed(2)}%`);
  made.append(filled);
  return made;
}

export function amount(value: number, unit: Measure["unit"]): string {
  if (unit === "count") return format.count(value);
  return unit === "bytes_per_step" && value === 0 ? "–" : format.bytes(value);
}

/** The name of a device of a recording. */
export function named(recording: { name: string; device?: number; devices?: number }): string {
  const name = format.clean(recording.name, 300);
  return (recording.devices ?? 1) > 1 ? `${name}, device ${recording.device}` : name;
}

export function section(id: string, title: string, ...content: (Node | null)[]): HTMLElement {
  return part(id, title, title, ...content).element;
}

/** A table that scrolls by itself when the window is narrow. */
export function scrolled(label: string, table: HTMLElement): HTMLElement {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}
