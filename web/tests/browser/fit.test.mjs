// The page of a plan: what it shows, with mouse and keys, in both themes and in narrow windows, whatever names are.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import test from "node:test";
import { gunzipSync, gzipSync } from "node:zlib";
import { box, drawn, open, out, pages, root, show, text } from "./support.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PARTS = ["verdict", "plan", "timeline", "phases", "front", "about"];
const MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>";
const CONTROL = "a\u202eb\u0000c\u001b[2Jd\u2066e";

/** The page of a plan, as the real command writes it. */
function fit(name, ...more) {
  mkdirSync(pages, { recursive: true });
  const page = path.join(pages, `fit-${name}.html`);
  assert.ok(process.env.GPUHEAP, "GPUHEAP names the command");
  const traces = ["8", "4"].flatMap((batch) => [
    "--trace",
    path.join(root, `crates/gpuheap/tests/traces/transformer-${batch}.json.gz`),
  ]);
  execFileSync(process.env.GPUHEAP, ["fit", ...traces, "--html", page, ...more], { stdio: "ignore" });
  return page;
}

const DATA = /(id="gpuheap-data">)([^<]*)(<)/;

/** The same page around other data. */
function changed(file, name, change) {
  const page = readFileSync(file, "utf8");
  const data = JSON.parse(gunzipSync(Buffer.from(DATA.exec(page)[2], "base64")));
  const text = gzipSync(JSON.stringify(change(data) ?? data)).toString("base64");
  const to = path.join(pages, `fit-${name}.html`);
  writeFileSync(to, page.replace(DATA, `$1${text}$3`));
  return to;
}

const planned = fit("planned", "--budget", "1300MiB");

/** With the changes of a program, which a trace alone does not have. */
const whole = changed(planned, "whole", (data) => {
  data.changes = {
    diff: "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,3 @@\n import torch\n-loss.backward()\n+applied.backward(loss)\n+applied.optimizer_step()\n",
    start: "torchrun --standalone --nproc-per-node=2 train.py",
  };
});

for (const [name, options] of [
  ["light", {}],
  ["dark", { dark: true }],
  ["narrow", { width: 360 }],
  ["narrow-dark", { width: 360, dark: true }],
]) {
  test(`the page can be read by everyone: ${name}`, async () => {
    const { page, close } = await open(whole, options);
    for (const id of [...PARTS, "changes"]) await show(page, id);
    await page.locator("summary").first().click();
    await page.evaluate(() => scrollTo(0, 0));
    await drawn(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${wide} pixels wider than the window`);
    await page.screenshot({ path: path.join(out, `fit-${name}.png`), fullPage: true });
    await page.evaluate(axe);
    const { violations, passed } = await page.evaluate(async () => {
      const found = await globalThis.axe.run(document);
      const short = ({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) => node.html.slice(0, 200)) });
      return { violations: found.violations.map(short), passed: found.passes.length };
    });
    assert.ok(passed > 20, `${passed} rules applied`);
    const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    assert.deepEqual(serious, []);
    await close();
  });
}

test("the answer is there in words", async () => {
  const { page, close } = await open(whole);
  assert.match(await text(page, ".headline"), /FITS in 1\.27 GiB with \d changes/);
  const facts = await text(page, "#verdict .facts");
  assert.match(facts, /Headroom[\d.]+ MiB of 1\.27 GiB; at least [\d.]+ [KM]iB within the error bar/);
  assert.match(facts, /Binds\w+ of step 2/);
  assert.equal(await page.locator(".diff .added").count(), 2);
  assert.equal(await page.locator(".diff .removed").count(), 1);
  assert.match(await text(page, "#changes"), /Start it as torchrun/);
  await close();
});

test("the timeline shows a moment and who holds memory then", async () => {
  const { page, close } = await open(whole);
  await show(page, "timeline");
  assert.equal(await page.locator("#timeline .timeline").count(), 2);
  assert.match(await text(page, "#timeline .detail"), /^The moment that binds as planned: .*Who holds memory then/);
  const area = await box(page, "#timeline .u-over");
  await page.mouse.move(area.x + area.width * 0.3, area.y + 60);
  await drawn(page);
  const tip = await text(page, "#timeline .tip:not([hidden])");
  assert.match(tip, /event [\d,]+.*activations.*allocated.*% of the budget/);
  await page.mouse.down();
  await page.mouse.up();
  await drawn(page);
  assert.match(await text(page, "#timeline .detail"), /^The picked moment as it is: \w+ of step 2/);
  await page.mouse.move(0, 0);
  // A drag zooms, 0 shows all again; the arrows go from point to point.
  const frame = page.locator("#timeline .timeline").nth(1);
  await frame.focus();
  await page.keyboard.press("p");
  await drawn(page);
  assert.match(await text(page, "#timeline .detail"), /^The moment that binds as planned/);
  for (const key of ["+", "ArrowRight", "ArrowRight", "Enter"]) await page.keyboard.press(key);
  await drawn(page);
  assert.match(await text(page, "#timeline .detail"), /^The picked moment as planned/);
  assert.match(await text(page, "[role=status]"), /allocated/);
  for (const key of ["0", "-", "ArrowLeft", "Escape"]) await page.keyboard.press(key);
  for (const name of ["Events", "All that was traced", "Time", "The step"]) {
    await page.getByText(name, { exact: true }).click();
    await drawn(page);
  }
  await close();
});

test("phases lead to their moments, and points of the front say their changes", async () => {
  const { page, close } = await open(whole);
  await show(page, "phases");
  assert.ok((await page.locator("#phases .binds").count()) >= 2);
  await page.getByRole("button", { name: /forward of step 2, as it is/ }).click();
  await drawn(page);
  assert.match(await text(page, "#timeline .detail"), /^The picked moment as it is: forward of step 2/);
  await show(page, "front");
  const points = page.locator(".front-point");
  assert.ok((await points.count()) > 3);
  await points.nth(1).focus();
  const said = await text(page, "#front .info");
  assert.match(said, /GiB, [\d.]+ ms a step \([+\u2212±]\d+ %\): /);
  assert.equal(await page.locator(".front-table .chosen").count(), 1);
  await close();
});

test("keys go to the parts, and help says which", async () => {
  const { page, close } = await open(whole);
  await page.keyboard.press("3");
  assert.equal(await page.evaluate(() => document.activeElement.id), "timeline");
  await page.keyboard.press("?");
  assert.match(await text(page, "dialog"), /pick the moment that binds/);
  await page.keyboard.press("Escape");
  await page.emulateMedia({ media: "print" });
  await drawn(page);
  await close();
});

test("what fits as it is, and what does not fit", async () => {
  for (const [name, options, headline, plan] of [
    ["as-it-is", [], /FITS in 141 GiB|FITS in 1\d\d GiB as it is/, /Nothing has to change/],
    ["not", ["--budget", "900MiB", "--without", "all"], /DOES NOT FIT in 900 MiB/, /No change makes it fit/],
  ]) {
    const { page, close } = await open(fit(name, ...options));
    for (const id of PARTS) if (await page.locator(`#${id}`).count()) await show(page, id);
    assert.match(await text(page, ".headline"), headline);
    assert.match(await text(page, "#plan"), plan);
    await close();
  }
});

test("what spills says so", async () => {
  const file = changed(whole, "spill", (data) => {
    data.fit.verdict = "fits_with_spill";
    data.fit.budget_bytes = data.fit.peak.device_bytes - 2 ** 26;
  });
  const { page, close } = await open(file);
  assert.match(await text(page, ".badge"), /FITS WITH SPILL/);
  assert.match(await text(page, "#verdict .facts"), /Headroomnone: 64\.0 MiB more than the budget/);
  await close();
});

for (const [title, name] of [
  ["markup", MARKUP],
  ["control characters", CONTROL],
  ["a name of a megabyte", "x".repeat(1_000_000)],
]) {
  test(`${title} in a plan stays text`, async () => {
    const file = changed(whole, `hostile-${title.replaceAll(" ", "-")}`, (data) => {
      const renamed = (value, key) => {
        if (typeof value === "string" && !["schema", "verdict", "class", "phase", "lever"].includes(key)) return name;
        if (Array.isArray(value)) return value.map((one) => renamed(one, key));
        if (value === null || typeof value !== "object") return value;
        return Object.fromEntries(Object.entries(value).map(([at, one]) => [at, renamed(one, at)]));
      };
      // Phases, classes and kinds of levers are not for a program to name. So many copies of a long name would be
      // another matter.
      data.fit.timelines.planned.modules.length = data.fit.timelines.baseline.modules.length = 3;
      data.fit.front.length = 3;
      data.titles.length = 3;
      data.fit.timelines.baseline.phases.length = data.fit.timelines.planned.phases.length = 2;
      return renamed(data);
    });
    const { page, close } = await open(file);
    for (const id of PARTS) await show(page, id);
    await page.locator("#timeline .timeline").first().focus();
    for (const key of ["p", "ArrowRight", "Enter"]) await page.keyboard.press(key);
    await page.locator(".front-point").first().focus();
    await drawn(page);
    assert.equal(await page.locator("img, iframe, object, main script").count(), 0);
    const shown = await page.locator("main").innerText();
    assert.ok(!/[\u0000-\u0008\u001b\u202e\u2066]/.test(shown), "no character that steers");
    assert.ok(shown.length < 100_000, `${shown.length}`);
    await close();
  });
}

test("a plan without memory through time says so", async () => {
  const file = changed(whole, "saved", (data) => void delete data.fit.timelines);
  const { page, close } = await open(file);
  for (const id of PARTS) await show(page, id);
  assert.match(await text(page, "#timeline p"), /was not kept with this plan/);
  assert.ok((await page.locator("#phases tbody tr").count()) > 1);
  await close();
});

test("data that cannot be read is a message, not an empty page", async () => {
  const file = changed(whole, "later", () => ({ schema: "gpuheap.fit.page/9" }));
  const { page, close } = await open(file, { ready: "failed" });
  assert.match(await text(page, "[role=alert]"), /another form of data/);
  await close();
});
