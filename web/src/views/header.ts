/** The head of the page: what was read, where to go, which moment is shown. */

import type { App } from "../app.js";
import { button, h } from "../dom.js";
import * as format from "../format.js";
import { MOMENTS, type Model } from "../model.js";
import { themeChoice } from "../theme.js";
import { momentText } from "./flame.js";
import { eventText } from "./timeline/change.js";

export function header(model: Model, help: () => void): { element: HTMLElement; navigation: HTMLElement } {
  const { source } = model.report;
  const name = source.path === "-" ? "standard input" : format.baseName(source.path);
  const device = source.devices > 1 ? `, device ${source.device}` : "";
  const title = h("h1", {}, format.clean(name, 200), h("span", { class: "faint" }, device));
  const navigation = h("nav", { class: "sections", "aria-label": "Parts of the page" });
  const element = h(
    "header",
    {},
    h(
      "div",
      { class: "top" },
      title,
      h(
        "div",
        { class: "tools" },
        ...(model.page.served ? [h("a", { href: "/recordings" }, "All recordings")] : []),
        themeChoice(),
        button("?", help, { "aria-label": "Help: keys", title: "Help: keys" }),
      ),
    ),
  );
  if (model.page.served && source.devices > 1) void otherDevices(title, model.page.served.recording);
  return { element, navigation };
}

/** Links to the pages of the recording's other devices; none where the server does not tell. */
async function otherDevices(title: HTMLElement, own: string): Promise<void> {
  try {
    const response = await fetch("/api/recordings");
    if (!response.ok) return;
    const { recordings } = (await response.json()) as { recordings: { id: number; name: string; device?: number }[] };
    const name = recordings.find(({ id }) => String(id) === own)?.name;
    const others = recordings.filter((one) => one.name === name && String(one.id) !== own && one.device !== undefined);
    for (const { id, device } of others) title.append(" ", h("a", { href: `/recordings/${id}` }, `device ${device}`));
  } catch {
    // The list of all recordings leads to them, too.
  }
}

/** Which moment all views show, and the way to others. */
export function momentBar(app: App): HTMLElement {
  const { model } = app;
  const text = h("span", { class: "moment-text" });
  const show = () => {
    const moment = app.moment.value;
    const when = momentText(app, moment);
    const event = model.momentName(moment.tick) ? `, ${eventText(moment.tick)}` : "";
    const time = moment.time === null ? "" : `, ${format.duration(moment.time)}`;
    const amounts = `${format.bytes(moment.allocated)} allocated of ${format.bytes(moment.reserved)} reserved`;
    text.replaceChildren(
      h("strong", {}, format.capitalized(when)),
      h("span", { class: "faint" }, `${event}${time}`),
      h("span", { class: "amounts" }, amounts),
    );
    for (const one of buttons) one.element.setAttribute("aria-pressed", String(one.tick === moment.tick));
  };
  const buttons = model.moments
    .filter(({ name }) => MOMENTS[name])
    .map(({ name, tick }) => ({ tick, element: button(MOMENTS[name].title, () => void app.pick(tick)) }));
  const bar = h(
    "div",
    { class: "moment", role: "group", "aria-label": "Moment" },
    text,
    h("span", { class: "group" }, ...buttons.map(({ element }) => element)),
  );
  if (model.steps.length > 0) {
    bar.append(
      h(
        "span",
        { class: "group" },
        button("‹ Step", () => app.step(-1), { "aria-label": "End of the step before" }),
        button("Step ›", () => app.step(1), { "aria-label": "End of the next step" }),
      ),
    );
  }
  show();
  app.moment.on((moment) => {
    show();
    app.announce(
      `${format.capitalized(momentText(app, moment))}: ${format.bytes(moment.allocated)} allocated of ${format.bytes(moment.reserved)} reserved`,
    );
  });
  return bar;
}
