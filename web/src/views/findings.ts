/** Every finding with what was seen, its stack and its growth. */

import type { App } from "../app.js";
import { button, h, nextId, prose } from "../dom.js";
import * as format from "../format.js";
import { lineChart } from "../chart.js";
import type { Finding, Place } from "../report.js";
import { part, type Part } from "./section.js";
import { isLibrary, stackElement } from "./stack.js";
import { fact, remedy, siteElement } from "./verdict.js";

export function findings(app: App): Part {
  const list = app.model.report.findings;
  const healthy = app.model.report.verdict.kind === "healthy";
  const none = healthy ? "Nothing is wrong: no finding" : "No finding";
  const intro = healthy && list.length > 0 ? h("p", {}, "Nothing is wrong; this is only worth knowing") : null;
  return part(
    "findings",
    "Findings",
    list.length > 0 ? format.counted(list.length, "finding") : "Findings",
    list.length === 0 ? h("p", {}, none) : intro,
    ...list.map((finding, index) => one(app, finding, index + 1, list.length === 1 && !healthy)),
  );
}

/** `said`: the verdict says already what it is, where, and what to change. */
function one(app: App, finding: Finding, number: number, said: boolean): HTMLElement {
  const facts = h("dl", { class: "facts" });
  if (finding.site && !said) fact(facts, "Where", siteElement(finding.site));
  const more = finding.bytes_per_step === null ? "" : `, ${format.bytes(finding.bytes_per_step)} more each step`;
  fact(facts, "Costs", `${format.bytes(finding.bytes)}${more}`);
  if (!said) {
    fact(facts, "Confidence", finding.confidence);
    remedy(facts, finding, app.announce);
  }
  if (finding.evidence.length > 0) {
    fact(facts, "Seen", h("ul", {}, ...finding.evidence.map((text) => h("li", {}, ...prose(text)))));
  }
  if (finding.stack.length > 0) fact(facts, "Stack", stackElement(finding.stack, isLibrary));
  const heading = h(
    "h3",
    { id: `${nextId()}-title` },
    h("span", { class: "mark" }, String(number)),
    " ",
    ...(said ? ["What shows it"] : prose(finding.title)),
  );
  const article = h("article", {
    id: `finding-${number}`,
    class: "finding",
    tabindex: -1,
    "aria-labelledby": heading.id,
  });
  // Its own name works as a link, too.
  article.append(h("span", { id: ownId(finding.id), class: "anchor" }), heading, facts);
  if (finding.growth.length > 1) article.append(growth(finding));
  const buttons = h("p", { class: "buttons" });
  const tick = typeof finding.event === "number" ? finding.event + 1 : app.model.tickOf("peak");
  const label = typeof finding.event === "number" ? "Show at this moment" : "Show at the peak";
  if (tick !== null) buttons.append(button(label, () => show(app, finding, tick)));
  const site = siteIndex(app, finding.site);
  if (site >= 0) buttons.append(button("Select the site", () => app.site.set(site)));
  article.append(buttons);
  return article;
}

/** An id may come from the data: only what a link can hold is used. */
function ownId(id: string): string | undefined {
  return /^[a-z][\w-]{0,60}$/i.test(id) && !/^(finding-\d+|g\d+.*)$/.test(id) ? id : undefined;
}

function show(app: App, finding: Finding, tick: number): void {
  const site = siteIndex(app, finding.site);
  if (site >= 0) app.site.set(site);
  void app.pick(tick);
  document.getElementById("timeline")?.scrollIntoView();
}

function siteIndex(app: App, site: Place | null): number {
  if (!site) return -1;
  return app.model.sites.findIndex(
    (one) => one.file === site.file && one.line === site.line && one.function === site.function,
  );
}

function growth(finding: Finding): HTMLElement {
  const first = finding.growth[0];
  const last = finding.growth[finding.growth.length - 1];
  const steps = format.counted(finding.growth.length, "step");
  const text = `From ${format.bytes(first)} at the end of step 1 to ${format.bytes(last)} over ${steps}`;
  return h(
    "figure",
    { class: "growth" },
    lineChart({
      label: `Bytes at the end of each step. ${text}`,
      height: 150,
      x: finding.growth.map((_, index) => index + 1),
      xText: (step) => `step ${format.count(step)}`,
      xTexts: (splits) => splits.map((step) => (Number.isInteger(step) ? format.count(step) : "")),
      lines: [{ label: finding.id, y: finding.growth, ink: "--accent", dash: [], width: 2 }],
      fromZero: true,
    }),
    h("figcaption", {}, text),
  );
}
