// The page about a folder, as `gpuheap serve` sends it: list, ranks, comparison, reports, hostile names.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { createInterface } from "node:readline";
import { open, out, root, show, text } from "./support.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const HOSTILE = "<img src=x onerror=alert(1)>.pickle.gz";

let folder;
let server;
let origin;

function copy(from, to) {
  const path_ = path.join(folder, to);
  mkdirSync(path.dirname(path_), { recursive: true });
  copyFileSync(path.join(root, from), path_);
}

before(async () => {
  assert.ok(process.env.GPUHEAP, "GPUHEAP names the command");
  folder = mkdtempSync(path.join(tmpdir(), "runs-"));
  for (const rank of [0, 1, 2, 3]) {
    const which = rank === 2 ? "varlen_train_expandable" : "varlen_train";
    copy(`recordings/loops/${which}.pickle.gz`, `night/rank${rank}.pickle.gz`);
  }
  copy("examples/gpt2_varlen.pickle.gz", "gpt2.pickle.gz");
  copy("recordings/models/gpt2_expandable.pickle.gz", "gpt2_expandable.pickle.gz");
  copy("examples/loss_accumulate.pickle.gz", "loss.pickle.gz");
  copy("recordings/edge/two_devices.pickle.gz", "two.pickle.gz");
  copy("recordings/loops/plain_adam.pickle.gz", HOSTILE);
  writeFileSync(path.join(folder, "cut.pickle"), Buffer.from([0x80, 4]));
  server = spawn(process.env.GPUHEAP, ["serve", folder, "--listen", "127.0.0.1:0", "--no-open"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  for await (const line of createInterface({ input: server.stdout })) {
    origin = line.trim().replace(/\/$/, "");
    break;
  }
  for (;;) {
    const { recordings } = await (await fetch(`${origin}/api/recordings`)).json();
    if (recordings.every(({ state }) => state !== "reading")) break;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
});

after(() => {
  server?.kill("SIGINT");
  if (folder) rmSync(folder, { recursive: true });
});

async function list(options = {}) {
  const opened = await open(null, { online: `${origin}/recordings`, ...options });
  await opened.page.waitForSelector(".recordings tbody tr");
  return opened;
}

async function serious(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await globalThis.axe.run(document)).violations);
  return found
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html.slice(0, 200))]);
}

async function pick(page, name) {
  await page.getByRole("checkbox", { name: `Compare ${name}`, exact: true }).check();
}

test("the bundle is the one that is kept", () => {
  const made = mkdtempSync(path.join(tmpdir(), "bundle-"));
  execFileSync("node", ["build.mjs", made], { cwd: path.join(root, "web"), stdio: "ignore" });
  for (const name of ["folder.js", "folder.css", "folder.js.sha256", "folder.css.sha256"]) {
    const kept = path.join(root, "crates/gpuheap-serve/assets", name);
    assert.ok(readFileSync(path.join(made, name)).equals(readFileSync(kept)), `${name}: cargo xtask web builds it`);
  }
  rmSync(made, { recursive: true });
});

test("every recording is listed with its verdict", async () => {
  const { page, close } = await list();
  assert.equal(await page.locator(".recordings tbody tr").count(), 11);
  assert.match(await text(page, "#recordings p"), /^11 recordings: .*\b2 leaks, .*1 not readable$/);
  const leak = page.locator("tr", { hasText: "loss.pickle.gz" });
  assert.match(await leak.textContent(), /Leak/);
  assert.match(await page.locator("tr", { hasText: "cut.pickle" }).textContent(), /unexpected end of file/);
  assert.match(
    await page.locator("tr", { hasText: "<img" }).textContent(),
    /<img src=x onerror=alert\(1\)>\.pickle\.gz/,
  );
  assert.equal(await page.locator("img").count(), 0);
  await page.getByRole("button", { name: "reserved, at most" }).click();
  const first = await text(page, ".recordings tbody tr th");
  assert.match(first, /gpt2\.pickle\.gz/);
  await page.getByLabel("Filter recordings").fill("gpt2");
  assert.equal(await page.locator(".recordings tbody tr").count(), 2);
  await close();
});

test("the rank that stands out is named", async () => {
  const { page, close } = await list();
  await show(page, "ranks");
  assert.match(await text(page, "#ranks .sentences li"), /^Rank 2 reserves .* (more|less) than the median/);
  assert.match(await page.locator("#ranks tr.odd").first().textContent(), /^rank 2.*(more|less)/);
  assert.equal(await page.locator("#ranks .run").count(), 2);
  await close();
});

test("two recordings are compared, and the address keeps them", async () => {
  const { page, close } = await list();
  await pick(page, "gpt2.pickle.gz");
  await pick(page, "gpt2_expandable.pickle.gz");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.waitForSelector("#comparison table");
  assert.match(page.url(), /#compare=\d+,\d+$/);
  const reserved = await page.locator("#comparison tr", { hasText: "reserved, at most" }).textContent();
  assert.match(reserved, /36\.5\sGiB.*\u2212/);
  await page.getByRole("button", { name: "Swap" }).click();
  await page.waitForFunction(() =>
    /\+/.test(document.querySelector("#comparison tbody tr td:last-child")?.textContent ?? ""),
  );
  await page.reload();
  await page.waitForSelector("#comparison table");
  await page.getByRole("button", { name: "Close" }).click();
  await page.locator("#comparison").waitFor({ state: "hidden" });
  await close();
});

test("a new recording appears by itself", async () => {
  const { page, close } = await list();
  copy("recordings/loops/ema.pickle.gz", "late.pickle.gz");
  await page.getByRole("link", { name: "late.pickle.gz" }).waitFor();
  rmSync(path.join(folder, "late.pickle.gz"));
  await page.getByRole("link", { name: "late.pickle.gz" }).waitFor({ state: "detached" });
  await close();
});

test("a report is a click away, and complete", async () => {
  const { page, close } = await list();
  await page.getByRole("link", { name: "gpt2.pickle.gz" }).click();
  await page.waitForSelector('html[data-ready=""] #whatif table');
  assert.match(await page.title(), /gpt2\.pickle\.gz/);
  for (const id of ["timeline", "flame", "map"]) await show(page, id);
  await page.getByRole("button", { name: "End", exact: true }).first().click();
  await page.waitForFunction(() => /^At the end/.test(document.querySelector(".moment-text").textContent));
  await close();
});

for (const [name, options] of [
  ["light", {}],
  ["dark", { dark: true }],
  ["narrow", { width: 360 }],
]) {
  test(`pictures and accessibility, ${name}`, async () => {
    const { page, close } = await list(options);
    await pick(page, "gpt2.pickle.gz");
    await pick(page, "gpt2_expandable.pickle.gz");
    await page.getByRole("button", { name: "Compare", exact: true }).click();
    await page.waitForSelector("#comparison table");
    assert.deepEqual(await serious(page), []);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `the page is ${wide} px too wide`);
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: path.join(out, `folder-${name}.png`), fullPage: true });
    await close();
  });
}
