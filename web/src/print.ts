/** What changes on paper: white ground, everything unfolded, sharp pictures. */

import { setChartsOnPaper } from "./chart.js";
import { setPrinting } from "./surface.js";
import { setOnPaper } from "./theme.js";

export function onPrint(): void {
  let opened: HTMLDetailsElement[] = [];
  let printing = false;
  const set = (value: boolean) => {
    if (value === printing) return;
    printing = value;
    if (printing) {
      opened = [...document.querySelectorAll("details")].filter((details) => !details.open);
      for (const details of opened) {
        details.open = true;
        // What is filled when it is opened must be there now: the browser's own event comes too late for the paper.
        details.dispatchEvent(new Event("toggle"));
      }
      for (const fold of document.querySelectorAll<HTMLButtonElement>(".stack .folded button")) fold.click();
    } else for (const details of opened) details.open = false;
    // As wide as paper before anything is drawn for it.
    document.documentElement.toggleAttribute("data-printing", printing);
    setOnPaper(printing);
    setChartsOnPaper(printing);
    setPrinting(printing);
  };
  addEventListener("beforeprint", () => set(true));
  addEventListener("afterprint", () => set(false));
  matchMedia("print").addEventListener("change", (query) => set(query.matches));
}
