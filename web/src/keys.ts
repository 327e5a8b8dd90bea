/** What keys do on a page, as a dialog. */

import { button, h } from "./dom.js";

/** Keys or parts of the page, and what they do. */
export type Rows = [string, string][];

export function keysDialog(everywhere: Rows, charts: Rows): HTMLDialogElement {
  const list = (rows: Rows, code: boolean) =>
    h(
      "dl",
      { class: "facts" },
      ...rows.map(([key, text]) => h("div", {}, h("dt", {}, code ? h("kbd", {}, key) : key), h("dd", {}, text))),
    );
  const dialog = h(
    "dialog",
    { "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keys"),
    list(everywhere, true),
    list(charts, false),
    h(
      "p",
      { class: "buttons" },
      button("Close", () => dialog.close()),
    ),
  );
  return dialog;
}
