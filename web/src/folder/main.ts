/** The page about a folder of recordings: a list, what differs between ranks, two of them compared. */

import "../style.css";
import "../folder.css";
import { h } from "../dom.js";
import * as format from "../format.js";
import { startTheme, themeChoice } from "../theme.js";
import { ask, type List, type SkewList } from "./data.js";
import { DiffView } from "./diff.js";
import { ListView } from "./list.js";
import { SkewView } from "./skew.js";

/** Milliseconds from one question to the next: while something is read, and while nothing is. */
const SOON = 700;
const LATER = 3000;

function start(root: HTMLElement): void {
  const problem = h("p", { class: "note bad", role: "alert", hidden: true });
  const heading = h("h1", {}, "Recordings");
  const list = new ListView((before, after) => (location.hash = `compare=${before},${after}`));
  const skew = new SkewView();
  const titles = new Map<string, string>();
  const diff = new DiffView(
    () => titles,
    () => {
      const pair = compared();
      if (pair) location.hash = `compare=${pair[1]},${pair[0]}`;
    },
    () => (location.hash = "recordings"),
  );
  const main = h(
    "main",
    {},
    h("header", {}, h("div", { class: "top" }, heading, h("div", { class: "tools" }, themeChoice()))),
    problem,
    list.element,
    diff.element,
    skew.element,
  );
  root.replaceWith(main);

  let known = "";
  let ready = "";
  async function refresh(): Promise<number> {
    const found = await ask<List>("/api/recordings");
    const text = JSON.stringify(found);
    if (text !== known) {
      known = text;
      if (found.folder !== null)
        heading.replaceChildren("Recordings in ", h("code", {}, format.clean(found.folder, 200)));
      list.update(found.recordings);
      const figures = JSON.stringify(found.recordings.map(({ id, peaks, steps }) => [id, peaks, steps]));
      if (figures !== ready) {
        ready = figures;
        const { runs } = await ask<SkewList>("/api/skew");
        for (const measure of runs.flatMap((run) => run.measures))
          if (measure.class) titles.set(measure.class, measure.title);
        skew.update(runs);
      }
    }
    document.documentElement.setAttribute("data-ready", "");
    return found.recordings.some(({ state }) => state === "reading") ? SOON : LATER;
  }

  async function again(): Promise<void> {
    let wait = LATER;
    try {
      if (!document.hidden) wait = await refresh();
      problem.hidden = true;
    } catch (error) {
      problem.textContent = error instanceof Error ? error.message : String(error);
      problem.hidden = false;
    }
    setTimeout(() => void again(), wait);
  }

  const follow = () => {
    const pair = compared();
    if (!pair) return diff.hide();
    list.pick(...pair);
    void diff.show(...pair);
  };
  addEventListener("hashchange", follow);
  void again().then(follow);
}

/** The two recordings that the address names. */
function compared(): [number, number] | null {
  const match = /^#compare=(\d{1,9}),(\d{1,9})$/.exec(location.hash);
  return match ? [Number(match[1]), Number(match[2])] : null;
}

const root = document.getElementById("gpuheap");
if (root) {
  startTheme();
  start(root);
}
