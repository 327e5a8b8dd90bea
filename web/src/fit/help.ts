/** The keys of the page of a plan. */

import { keysDialog, type Rows } from "../keys.js";
import type { Timelines } from "./timeline.js";

const KEYS: Rows = [
  ["?", "this help"],
  ["1 … 9", "go to a part of the page"],
  ["p", "pick the moment that binds"],
];

const CHARTS: Rows = [
  [
    "Timeline",
    "← → move (with Shift farther), Enter picks, p goes to the moment that binds, + − zoom, 0 or double click shows all, a drag zooms",
  ],
  ["Time by budget", "Tab goes from point to point"],
];

export const helpDialog = (): HTMLDialogElement => keysDialog(KEYS, CHARTS);

/** Keys that work everywhere but in fields. */
export function keys(sections: HTMLElement[], timelines: Timelines, help: () => void): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const digit = /^[1-9]$/.test(event.key) ? Number(event.key) : 0;
    if (event.key === "?") help();
    else if (event.key === "p") {
      const { which } = timelines.picked.value;
      const memory = timelines.memory(which);
      if (memory) timelines.pickPoint(which, memory.peakPoint);
    } else if (digit > 0 && sections[digit - 1]) {
      sections[digit - 1].scrollIntoView();
      sections[digit - 1].focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  });
}
