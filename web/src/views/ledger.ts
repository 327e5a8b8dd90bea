/** The ledger: a picture of the reserved memory whose parts add up. */

import type { App } from "../app.js";
import { look } from "../classes.js";
import { h, nextId } from "../dom.js";
import * as format from "../format.js";
import { MOMENTS } from "../model.js";
import type { MomentName } from "../page.js";
import type { LedgerPart } from "../report.js";
import { part, type Part } from "./section.js";

export function ledgerView(app: App): Part {
  const { report, moments } = app.model;
  const title = "Where the memory was";
  const known = (Object.keys(report.ledgers) as MomentName[]).filter((name) => MOMENTS[name] && report.ledgers[name]);
  const order = moments.map(({ name }) => name);
  known.sort((a, b) => order.indexOf(a) - order.indexOf(b));
  if (known.length === 0) return part("ledger", "Ledger", title, h("p", {}, "Nothing was reserved"));
  const first = known.find((name) => name === report.ledger_at.replace("-", "_")) ?? known[0];
  return part("ledger", "Ledger", title, tabs(app, known, first));
}

/** Tabs as the ARIA practices have them: arrows move between them, only the chosen one is in the tab order. */
function tabs(app: App, names: MomentName[], first: MomentName): HTMLElement {
  const id = nextId();
  const panels = names.map((name) => panel(name, app.model.report.ledgers[name] ?? []));
  const buttons = names.map((name, index) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${id}-tab-${index}`,
        "aria-controls": `${id}-panel-${index}`,
        onclick: () => choose(index),
        onkeydown: (event) => {
          const { key } = event as KeyboardEvent;
          const step = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
          if (step === 0) return;
          event.preventDefault();
          const next = (index + step + names.length) % names.length;
          choose(next);
          buttons[next].focus();
        },
      },
      MOMENTS[name].title,
    ),
  );
  const choose = (chosen: number) => {
    buttons.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
      panels[index].hidden = index !== chosen;
    });
  };
  panels.forEach((one, index) => {
    one.id = `${id}-panel-${index}`;
    one.setAttribute("aria-labelledby", `${id}-tab-${index}`);
  });
  choose(names.indexOf(first));
  return h(
    "div",
    {},
    h("div", { role: "tablist", class: "tabs", "aria-label": "Moment of the ledger" }, ...buttons),
    ...panels,
  );
}

function panel(name: MomentName, ledger: LedgerPart[]): HTMLElement {
  const parts = ledger.filter((one) => one.bytes > 0);
  const outside = parts.filter((one) => one.kind === "outside");
  const inside = parts.filter((one) => one.kind !== "outside");
  const reserved = inside.reduce((sum, one) => sum + one.bytes, 0);
  const whole = parts.reduce((sum, one) => sum + one.bytes, 0);
  const bar = h("div", { class: "ledger-bar", "aria-hidden": "true" });
  for (const one of parts) {
    const piece = h("div", {
      class: `piece ${pattern(one)}`,
      title: `${format.clean(one.part, 200)} ${format.bytes(one.bytes)}`,
    });
    colour(piece, one);
    piece.style.flexGrow = String(one.bytes / whole);
    if (one.bytes / whole > 0.07) piece.append(h("span", {}, format.clean(one.part, 60)));
    bar.append(piece);
  }
  const row = (one: LedgerPart) => {
    const mark = h("span", { class: `swatch ${pattern(one)}`, "aria-hidden": "true" });
    colour(mark, one);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, mark, format.clean(one.part, 200)),
      h("td", { class: "number" }, format.bytes(one.bytes)),
      h("td", { class: "number" }, one.kind === "outside" ? "" : format.share(one.bytes, reserved)),
      h("td", { class: "faint" }, format.clean(one.detail, 300)),
    );
  };
  const sum = (title: string, bytes: number) =>
    h(
      "tr",
      { class: "sum" },
      h("th", { scope: "row" }, title),
      h("td", { class: "number" }, format.bytes(bytes)),
      h("td", {}),
      h("td", { class: "faint" }, `${format.count(bytes)} bytes`),
    );
  const head = ["part", "bytes", "share", "detail"].map((text, index) =>
    h("th", { scope: "col", class: index === 1 || index === 2 ? "number" : "" }, text),
  );
  const body = h("tbody", {}, ...inside.map(row), sum("= reserved", reserved), ...outside.map(row));
  if (outside.length > 0)
    body.append(sum(outside.some((one) => one.part === "not reserved by PyTorch") ? "= limit" : "= device", whole));
  return h(
    "div",
    { role: "tabpanel", tabindex: 0 },
    bar,
    h(
      "table",
      { class: "ledger" },
      h("caption", {}, `Reserved memory ${MOMENTS[name].sentence}`),
      h("thead", {}, h("tr", {}, ...head)),
      body,
    ),
  );
}

function pattern(one: LedgerPart): string {
  if (one.class !== null) return look(one.class).pattern;
  return {
    rounding: look("rounding").pattern,
    pending: "mark-waiting",
    private_pool: "dots",
    free: "mark-free",
    stranded: "lines",
    outside: "cross",
    class: "plain",
  }[one.kind];
}

function colour(element: HTMLElement, one: LedgerPart): void {
  const name = one.class ?? (one.kind === "rounding" ? "rounding" : null);
  const { light, dark } = name === null ? { light: "#b9c1ca", dark: "#4d5763" } : look(name);
  element.style.setProperty("--light", light);
  element.style.setProperty("--dark", dark);
}
