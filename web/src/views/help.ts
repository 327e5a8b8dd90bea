/** The keys of the page. */

import type { App } from "../app.js";
import { keysDialog, type Rows } from "../keys.js";
import type { MomentName } from "../page.js";

const KEYS: Rows = [
  ["?", "this help"],
  ["1 … 9", "go to a part of the page"],
  ["p r o e", "pick the peak, the peak of reserved memory, the failed allocation, the end"],
  ["[ ]", "pick the end of the step before, of the next step"],
  ["Esc", "select no site; in the flame graph and the segment map: zoom out"],
];

const CHARTS: Rows = [
  [
    "Timeline",
    "← → move, Enter picks, + − zoom, 0 or double click shows all, Shift with ← → or with a drag pans, a drag zooms; the wheel zooms after a click, or with Ctrl",
  ],
  ["Flame graph", "arrows move, Enter zooms in, Esc zooms out, Home shows all"],
  [
    "Segment map",
    "← → go from block to block, ↑ ↓ from segment to segment, Enter zooms in, Esc zooms out, + − change the scale",
  ],
];

export const helpDialog = (): HTMLDialogElement => keysDialog(KEYS, CHARTS);

/** Keys that work everywhere but in fields. */
export function globalKeys(app: App, sections: HTMLElement[], help: () => void): void {
  const moments: Record<string, MomentName> = { p: "peak", r: "peak_reserved", o: "oom", e: "end" };
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement | null;
    const typing = target instanceof HTMLInputElement && target.type !== "checkbox" && target.type !== "radio";
    if (
      event.defaultPrevented ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      typing ||
      target instanceof HTMLSelectElement
    )
      return;
    if (document.querySelector("dialog[open]")) return;
    const moment = moments[event.key];
    const digit = /^[1-9]$/.test(event.key) ? Number(event.key) : 0;
    if (event.key === "?") help();
    else if (event.key === "[") app.step(-1);
    else if (event.key === "]") app.step(1);
    else if (event.key === "Escape") app.site.set(-1);
    else if (moment) {
      const tick = app.model.tickOf(moment);
      if (tick !== null) void app.pick(tick);
    } else if (digit > 0 && sections[digit - 1]) {
      sections[digit - 1].scrollIntoView();
      sections[digit - 1].focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  });
}
