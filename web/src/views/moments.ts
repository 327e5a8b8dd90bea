/** The moments with a name side by side: what the chart shows, as a table. */

import type { App } from "../app.js";
import { button, h } from "../dom.js";
import * as format from "../format.js";
import { MOMENTS } from "../model.js";
import { nearest } from "../columns.js";
import { swatch } from "./legend.js";

export function momentsTable(app: App): HTMLElement {
  const { model } = app;
  const { timeline } = model;
  const moments = model.moments.map(({ name, tick }) => ({ name, tick, at: nearest(timeline.ticks, tick) }));
  const known = moments.filter(({ name, at }) => at >= 0 && MOMENTS[name]);
  const head = known.map(({ name, tick }) =>
    h(
      "th",
      { scope: "col", class: "number" },
      button(MOMENTS[name].title, () => void app.pick(tick), { class: "link" }),
    ),
  );
  const row = (title: (Node | string)[], value: (moment: (typeof known)[number]) => string) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, ...title),
      ...known.map((moment) => h("td", { class: "number" }, value(moment))),
    );
  const body = h(
    "tbody",
    {},
    row(["after event"], ({ tick }) => (tick === 0 ? "start" : format.count(tick - 1))),
    model.hasTimes ? row(["after"], ({ tick }) => format.duration(model.timeAt(tick) ?? 0)) : null,
    row(["allocated"], ({ at }) => format.bytes(timeline.allocated[at])),
    row(["reserved"], ({ at }) => format.bytes(timeline.reserved[at])),
    ...model.order
      .filter((index) => known.some(({ at }) => timeline.classes[index][at] > 0))
      .map((index) => {
        const { name, title } = model.classes[index];
        return row([swatch(name), title], ({ at }) => format.bytes(timeline.classes[index][at]));
      }),
  );
  const table = h(
    "table",
    {},
    h("caption", {}, "Allocated memory by class"),
    h("thead", {}, h("tr", {}, h("td"), ...head)),
    body,
  );
  return h(
    "details",
    {},
    h("summary", {}, "The moments as a table"),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The moments as a table" }, table),
  );
}
