/** The answer: whether it fits, how sure that is, and what of the budget is taken by what. */

import { h, prose } from "../dom.js";
import * as format from "../format.js";
import { swatch } from "../views/legend.js";
import { part, type Part } from "../views/section.js";
import { fact } from "../views/verdict.js";
import { type Fit, type FitPage, type Peak, percent, phaseText } from "./data.js";

const VERDICTS = {
  fits: { title: "FITS", mark: "✓", look: "healthy" },
  fits_with_spill: { title: "FITS WITH SPILL", mark: "▦", look: "fragmentation" },
  does_not_fit: { title: "DOES NOT FIT", mark: "✕", look: "oom" },
} as const;

export function verdict(page: FitPage): Part {
  const { fit } = page;
  const kind = VERDICTS[fit.verdict] ?? { title: String(fit.verdict), mark: "•", look: "oom" };
  const badge = h("span", { class: `badge ${kind.look}` }, h("span", { "aria-hidden": "true" }, kind.mark), kind.title);
  const facts = h("dl", { class: "facts" });
  const { bytes, duration } = format;
  const planned = fit.plan.length > 0;
  if (planned) {
    const before = `${bytes(fit.baseline.device_bytes)} (${between(fit.baseline)}), ${duration(fit.baseline.step_us)} a step`;
    fact(facts, "As it is", before);
    const slower = percent(fit.step_us - fit.baseline.step_us, fit.baseline.step_us);
    const after = `${bytes(fit.peak.device_bytes)} (${between(fit.peak)}), ${duration(fit.step_us)} a step (${slower})`;
    fact(facts, "Planned", h("strong", {}, after));
  } else {
    fact(facts, "Needs", `${bytes(fit.peak.device_bytes)} (${between(fit.peak)}), ${duration(fit.step_us)} a step`);
  }
  fact(facts, "Headroom", headroom(fit));
  fact(facts, "Binds", ...binding(fit.peak));
  if (page.smallest) fact(facts, "Smallest", format.clean(page.smallest));
  return part(
    "verdict",
    "Verdict",
    "Verdict",
    h("p", { class: "headline" }, badge, " ", ...prose(page.headline)),
    gauge(fit),
    facts,
  );
}

/** The error bar in words. */
function between({ low, high }: Peak): string {
  return `${format.bytes(low)} to ${format.bytes(high)}`;
}

function headroom(fit: Fit): string {
  const spare = fit.budget_bytes - fit.peak.device_bytes;
  const sure = fit.budget_bytes - fit.peak.high;
  if (spare < 0) return `none: ${format.bytes(-spare)} more than the budget of ${format.bytes(fit.budget_bytes)}`;
  const least = sure >= 0 ? `at least ${format.bytes(sure)} within the error bar` : "none at the end of the error bar";
  return `${format.bytes(spare)} of ${format.bytes(fit.budget_bytes)}; ${least}`;
}

function binding(peak: Peak): Node[] {
  const where = format.clean(peak.module, 200);
  return [new Text(phaseText(peak)), ...(where === "" ? [] : [new Text(", in "), h("code", {}, where)])];
}

/** A bar each for the model as it is and as planned, on one scale, with the budget across both. */
function gauge(fit: Fit): HTMLElement {
  const rows: [string, Peak][] = fit.plan.length > 0 ? [["as it is", fit.baseline]] : [];
  rows.push([fit.plan.length > 0 ? "planned" : "needs", fit.peak]);
  const most = Math.max(...rows.map(([, peak]) => Math.max(peak.high, peak.device_bytes)));
  // A budget far beyond what is needed would leave nothing to see.
  const whole = Math.max(most, Math.min(fit.budget_bytes, most * 2.5)) * 1.04;
  const share = (amount: number) => `${Math.max(0, Math.min(100, (amount / whole) * 100)).toFixed(3)}%`;
  const bars = rows.map(([name, peak]) => {
    const cached = peak.reserved_bytes - peak.allocated_bytes;
    const context = peak.device_bytes - peak.reserved_bytes;
    const pieces = [
      piece("context", context, share(context)),
      piece("activations allocated", peak.allocated_bytes, share(peak.allocated_bytes)),
      piece("cached", cached, share(cached)),
    ];
    const error = h("span", { class: "gauge-error", title: `error bar: ${between(peak)}` });
    error.style.setProperty("left", share(peak.low));
    error.style.setProperty("width", share(Math.max(0, peak.high - peak.low)));
    const over = peak.high > fit.budget_bytes ? "over" : "";
    const bar = h("div", { class: `gauge-bar ${over}` }, ...pieces, error, mark(fit, share, whole));
    return h(
      "div",
      { class: "gauge-row" },
      h("span", { class: "faint" }, name),
      bar,
      h("span", { class: "number" }, format.bytes(peak.device_bytes)),
    );
  });
  const legend = h(
    "ul",
    { class: "legend" },
    h("li", {}, swatch("context"), h("span", {}, "context and libraries")),
    h("li", {}, h("span", { class: "swatch gauge-allocated" }), h("span", {}, "allocated")),
    h("li", {}, h("span", { class: "swatch gauge-cached" }), h("span", {}, "reserved beyond that")),
    h("li", {}, h("span", { class: "swatch gauge-error-mark" }), h("span", {}, "error bar")),
    h(
      "li",
      {},
      h("span", { class: "swatch mark-limit" }),
      h("span", {}, "budget"),
      h(
        "span",
        { class: "number" },
        format.bytes(fit.budget_bytes) + (fit.budget_bytes > whole ? ", beyond the bar" : ""),
      ),
    ),
  );
  const label = rows.map(([name, peak]) => `${name}: ${format.bytes(peak.device_bytes)}, ${between(peak)}`).join("; ");
  return h(
    "div",
    {
      class: "gauge",
      role: "img",
      "aria-label": `Memory of one device. ${label}; budget ${format.bytes(fit.budget_bytes)}`,
    },
    ...bars,
    legend,
  );
}

function piece(kind: string, amount: number, width: string): HTMLElement {
  const element = h("span", { class: `gauge-piece gauge-${kind.split(" ").at(-1)}`, title: format.bytes(amount) });
  element.style.setProperty("width", width);
  return element;
}

function mark(fit: Fit, share: (amount: number) => string, whole: number): HTMLElement | null {
  if (fit.budget_bytes > whole) return null;
  const element = h("span", { class: "gauge-budget" });
  element.style.setProperty("left", share(fit.budget_bytes));
  return element;
}
