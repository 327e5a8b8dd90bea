/** What the answer rests on: the trace, what could not be traced, notes. */

import { h, prose } from "../dom.js";
import * as format from "../format.js";
import { confElement, fact } from "../views/verdict.js";
import { part, type Part } from "../views/section.js";
import type { FitPage } from "./data.js";

export function aboutView(page: FitPage, announce: (text: string) => void): Part {
  const { fit } = page;
  const { source } = fit;
  const facts = h("dl", { class: "facts" });
  const device = fit.gpus > 1 ? `${fit.gpus} × ${fit.device}` : fit.device;
  fact(facts, "Device", `${format.clean(device, 100)}, budget ${format.bytes(fit.budget_bytes)} of each`);
  fact(facts, "Batch", `${format.count(fit.batch.size)} samples a step`);
  if (source.make !== "") fact(facts, "Program", h("code", {}, format.clean(source.make, 300)));
  const versions = [
    source.torch && `PyTorch ${source.torch}`,
    source.python && `Python ${source.python}`,
    source.how && `on ${source.how}`,
  ];
  const traced = versions.filter(Boolean).join(", ");
  if (traced !== "") fact(facts, "Traced", format.clean(traced, 300));
  const parts = `${format.bytes(fit.peak.allocated_bytes)} allocated, ${format.bytes(fit.peak.reserved_bytes)} reserved, ${format.bytes(fit.context_bytes)} for the context and libraries`;
  fact(facts, "The peak", parts);
  if (fit.conf !== "") fact(facts, "Allocator", confElement(fit.conf, announce));
  const unknown = fit.unknown.map(({ what, where, bound_bytes: bound }) =>
    h(
      "li",
      {},
      `${format.clean(what, 300)} in `,
      h("code", {}, format.clean(where, 300)),
      bound === null ? ": not bounded" : `: at most ${format.bytes(bound)}`,
    ),
  );
  const notes = fit.notes.map((note) => h("li", {}, ...prose(format.capitalized(note))));
  const list = (title: string, items: HTMLElement[]) =>
    items.length > 0 ? h("div", {}, h("h3", {}, title), h("ul", { class: "notes" }, ...items)) : null;
  return part(
    "about",
    "About",
    "What this rests on",
    facts,
    list("What could not be traced", unknown),
    list("Notes", notes),
    h("p", { class: "faint" }, `Written by ${format.clean(page.generator, 100)}`),
  );
}
