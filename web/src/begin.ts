/** How a page begins, and what it shows where it cannot. */

import { h } from "./dom.js";
import { startTheme } from "./theme.js";

export function begin(start: (main: HTMLElement) => Promise<void>): void {
  const main = document.getElementById("gpuheap");
  if (!main) return;
  startTheme();
  start(main).catch((error: unknown) => {
    const text = error instanceof Error ? error.message : String(error);
    main.replaceChildren(
      h("div", { class: "failure", role: "alert" }, h("h1", {}, "Nothing to show"), h("p", {}, text)),
    );
    document.documentElement.setAttribute("data-ready", "failed");
  });
}
