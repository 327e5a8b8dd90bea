/** Who holds memory at a moment, as a table. */

import { h } from "../dom.js";
import * as format from "../format.js";
import { swatch } from "../views/legend.js";
import { classOf, type Holder } from "./data.js";

export function holdersTable(caption: string, holders: readonly Holder[], whole: number): HTMLElement {
  const head = ["held", "of allocated", "class", "by"].map((name, index) =>
    h("th", { scope: "col", class: index < 2 ? "number" : "" }, name),
  );
  const rows = holders.map((holder) => {
    const { name, title } = classOf(holder.class);
    return h(
      "tr",
      {},
      h("td", { class: "number" }, format.bytes(holder.bytes)),
      h("td", { class: "number" }, format.share(holder.bytes, whole)),
      h("td", { class: "nowrap" }, swatch(name), title),
      h(
        "td",
        {},
        holder.module === ""
          ? h("span", { class: "faint" }, "all of the model")
          : h("code", {}, format.clean(holder.module, 200)),
      ),
    );
  });
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      { class: "holders" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...head)),
      h("tbody", {}, ...rows),
    ),
  );
}
