/** The answer: what is wrong, where, how sure, what to change. */

import { copyButton, h, prose } from "../dom.js";
import * as format from "../format.js";
import type { Model } from "../model.js";
import { MOMENTS } from "../model.js";
import type { Finding, OutOfMemory, Place, Report, Verdict } from "../report.js";
import { part, type Part } from "./section.js";

const KINDS: Record<Verdict["kind"], { title: string; mark: string }> = {
  healthy: { title: "Healthy", mark: "✓" },
  leak: { title: "Leak", mark: "↗" },
  sawtooth: { title: "Sawtooth", mark: "⋀" },
  fragmentation: { title: "Fragmentation", mark: "▦" },
  stranded: { title: "Stranded memory", mark: "⊘" },
  oom: { title: "Out of memory", mark: "✕" },
};

/** Holders that a healthy recording shows. */
const FIRST_HOLDERS = 5;

export function verdict(model: Model, announce: (text: string) => void): Part {
  const { report } = model;
  const said = report.verdict;
  const kind = KINDS[said.kind] ?? { title: said.kind, mark: "•" };
  const main = said.kind === "healthy" ? null : (report.findings[0] ?? null);
  const badge = h("span", { class: `badge ${said.kind}` }, h("span", { "aria-hidden": "true" }, kind.mark), kind.title);
  const facts = h("dl", { class: "facts" });
  if (said.site) fact(facts, "Where", siteElement(said.site));
  fact(facts, "Confidence", said.confidence);
  if (main) remedy(facts, main, announce);
  else if (said.remedy !== "") fact(facts, "Change", ...prose(said.remedy));
  if (report.oom) fact(facts, "Request", request(report.oom));
  fact(facts, "Peaks", peaks(report));
  const made = part(
    "verdict",
    "Verdict",
    "Verdict",
    h("p", { class: "headline" }, badge, " ", ...headline(kind.title, said.headline)),
    facts,
    said.kind === "healthy" || said.kind === "oom" ? holders(model) : null,
  );
  return made;
}

/** The headline without the kind, which the badge says already. */
function headline(title: string, text: string): Node[] {
  const plain = format.clean(text);
  if (!plain.toLowerCase().startsWith(title.toLowerCase())) return prose(plain);
  return prose(format.capitalized(plain.slice(title.length).replace(/^[:,. ]+/, "")));
}

export function fact(list: HTMLElement, name: string, ...value: (Node | string)[]): void {
  list.append(h("div", {}, h("dt", {}, name), h("dd", {}, ...value)));
}

/** What to do about a finding, what that saves, and the line to copy. */
export function remedy(list: HTMLElement, finding: Finding, announce: (text: string) => void): void {
  const { text, conf, saves_bytes: saves } = finding.remedy;
  const saving = saves ? h("strong", { class: "saves" }, `saves ${format.bytes(saves)}`) : "";
  fact(list, "Change", ...prose(text), " ", saving);
  if (conf === undefined) return;
  fact(list, conf === "" ? "Run" : "Set", confElement(conf, announce));
}

/** The line of a shell that sets `conf`, with a button that copies it. */
export function confElement(conf: string, announce: (text: string) => void): HTMLElement {
  const line = format.confLine(conf);
  return h("span", { class: "command" }, h("code", {}, line), copyButton(line, `Copy ${line}`, announce));
}

/** `train.py:16 in step`, the folders before it faint. */
export function siteElement(site: Place): HTMLElement {
  const name = format.baseName(site.file);
  const folder = format.clean(site.file.slice(0, site.file.length - name.length), 300);
  return h("code", { class: "site" }, h("span", { class: "faint" }, folder), format.place(site));
}

function request(oom: OutOfMemory): string {
  const { bytes } = format;
  return (
    `${bytes(oom.asked_bytes)} did not fit beside ${bytes(oom.allocated_bytes)} allocated; ` +
    `${bytes(oom.cached_bytes)} cached, at most ${bytes(oom.largest_free_bytes)} in one piece; ` +
    `the device had ${bytes(oom.device_free_bytes)} left`
  );
}

function peaks({ peaks: at }: Report): string {
  const { bytes } = format;
  const active = at.active_bytes === at.allocated_bytes ? "" : `, active ${bytes(at.active_bytes)}`;
  return `allocated ${bytes(at.allocated_bytes)}${active}, requested ${bytes(at.requested_bytes)}, reserved ${bytes(at.reserved_bytes)}`;
}

/** What fills the memory, where that is the answer. */
function holders(model: Model): HTMLElement | null {
  const { report } = model;
  const failed = report.verdict.kind === "oom" && report.oom !== null;
  const list = failed && report.oom ? report.oom.holders : report.holders;
  if (list.length === 0) return null;
  const moment = report.ledger_at.replace("-", "_") as keyof typeof MOMENTS;
  const at = failed ? report.oom : moment === "oom" ? report.oom : report[moment];
  const whole = at?.allocated_bytes ?? 0;
  const title = (name: string) => model.classes.find((one) => one.name === name)?.title ?? name;
  const rows = list
    .slice(0, FIRST_HOLDERS)
    .map((holder) =>
      h(
        "tr",
        {},
        h("td", { class: "number" }, format.bytes(holder.bytes)),
        h("td", { class: "number" }, format.share(holder.bytes, whole)),
        h("td", {}, title(holder.class)),
        h("td", {}, holder.site ? siteElement(holder.site) : format.clean(holder.label)),
      ),
    );
  const head = ["held", "of allocated", "class", "by"].map((name, index) =>
    h("th", { scope: "col", class: index < 2 ? "number" : "" }, name),
  );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "What fills the memory" },
    h(
      "table",
      { class: "holders" },
      h("caption", {}, `What fills the memory ${MOMENTS[failed ? "oom" : moment]?.sentence ?? ""}`),
      h("thead", {}, h("tr", {}, ...head)),
      h("tbody", {}, ...rows),
    ),
  );
}
