/** The lines that change in the program, and the line that starts it. */

import { copyButton, h } from "../dom.js";
import * as format from "../format.js";
import { part, type Part } from "../views/section.js";
import type { FitPage } from "./data.js";
import { lines } from "./text.js";

/** Lines of a diff that are shown. */
const MOST = 2000;

export function changesView(page: FitPage, announce: (text: string) => void): Part | null {
  const { changes } = page;
  if (!changes) return null;
  const { diff, start } = changes;
  const isDiff = /^--- .*\n\+\+\+ /.test(diff);
  const shown = lines(diff);
  const rows = shown.slice(0, MOST).map((line) => h("span", { class: isDiff ? kind(line) : "same" }, `${line}\n`));
  const more = shown.length - rows.length;
  return part(
    "changes",
    "Changes",
    isDiff ? "Changes in your program" : "How to use it",
    h(
      "div",
      { class: "code" },
      h(
        "pre",
        { class: isDiff ? "diff" : "", tabindex: 0, role: "region", "aria-label": "Changed lines" },
        h("code", {}, ...rows),
      ),
      copyButton(shown.join("\n"), "Copy the changed lines", announce),
    ),
    more > 0 ? h("p", { class: "faint" }, `${format.counted(more, "more line")}`) : null,
    h(
      "p",
      {},
      "Start it as ",
      h(
        "span",
        { class: "command" },
        h("code", {}, format.clean(start)),
        copyButton(format.clean(start), "Copy the line", announce),
      ),
    ),
  );
}

function kind(line: string): string {
  if (/^(\+\+\+|---) /.test(line)) return "file";
  if (line.startsWith("@@")) return "hunk";
  if (line.startsWith("+")) return "added";
  if (line.startsWith("-")) return "removed";
  return "same";
}
