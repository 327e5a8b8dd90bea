// A browser for the tests: pages from files, with the network off, and no error goes unseen.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { chromium } from "playwright-core";

export const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../..");
/** Where pictures go. */
export const out = process.env.OUT ?? path.join(root, "target/pictures");
/** Pages and recordings that tests make. */
export const pages = path.join(out, "../web-pages");
const assets = path.join(root, "crates/gpuheap-report/assets");

export const PARTS = ["verdict", "findings", "timeline", "flame", "map", "ledger", "whatif", "sites", "about"];

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let browser = null;

async function launched() {
  browser ??= chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
  return browser;
}

after(async () => (await browser)?.close());

/** Recordings of a folder of the repository. */
export function recordings(folder) {
  const names = readdirSync(path.join(root, folder)).filter((name) => name.endsWith(".pickle.gz"));
  return names.sort().map((name) => `${folder}/${name}`);
}

/** The page of a recording, as the real command writes it. */
export function explain(recording) {
  const file = path.resolve(root, recording);
  const page = path.join(pages, `${path.basename(file).split(".")[0]}-${path.basename(path.dirname(file))}.html`);
  mkdirSync(pages, { recursive: true });
  assert.ok(process.env.GPUHEAP, "GPUHEAP names the command");
  execFileSync(process.env.GPUHEAP, ["explain", file, "--html", page], { stdio: ["ignore", "ignore", "inherit"] });
  return page;
}

/** A page around data of the test's own, with the kept script and style. */
export function shell(name, data, source = null) {
  mkdirSync(pages, { recursive: true });
  const file = path.join(pages, `${name}.html`);
  writeFileSync(file, html(data, source));
  return file;
}

export function html(data, source = null) {
  const read = (asset) => readFileSync(path.join(assets, asset), "utf8");
  const connect = source === null ? "'none'" : "'self'";
  const policy = `default-src 'none'; script-src 'sha256-${read("report.js.sha256")}'; style-src 'unsafe-inline'; img-src data: blob:; connect-src ${connect}`;
  const text = data === null ? "" : gzipSync(typeof data === "string" ? data : JSON.stringify(data)).toString("base64");
  const from = source === null ? "" : ` data-src="${source}"`;
  return (
    `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">` +
    `<meta http-equiv="Content-Security-Policy" content="${policy}"><title>test</title><style>${read("report.css")}</style></head>` +
    `<body><main id="gpuheap"></main><script type="application/octet-stream" id="gpuheap-data"${from}>${text}</script>` +
    `<script>${read("report.js")}</script></body></html>`
  );
}

/** Opens a page with the network off. Whatever goes wrong in it fails the test that calls `close`. */
export async function open(
  file,
  { hash = "", width = 1280, height = 900, dark = false, ready = "", online = null } = {},
) {
  const context = await (
    await launched()
  ).newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    reducedMotion: "reduce",
    acceptDownloads: false,
  });
  const problems = [];
  if (online === null) {
    await context.setOffline(true);
    await context.route("**/*", (route) => {
      const address = route.request().url();
      if (/^(file|data|blob):/.test(address)) return route.continue();
      problems.push(`request for ${address}`);
      return route.abort();
    });
  }
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.stack}`));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.goto((online ?? pathToFileURL(file).href) + hash);
  await page.waitForSelector(`html[data-ready="${ready}"]`);
  return {
    page,
    problems,
    async close() {
      await context.close();
      assert.deepEqual(problems, []);
    },
  };
}

/** Brings a part into sight and waits until it is drawn. */
export async function show(page, id) {
  await page.evaluate((target) => document.getElementById(target).scrollIntoView(), id);
  await drawn(page);
}

/** Waits until what was asked for is drawn. */
export async function drawn(page) {
  await page.evaluate(
    () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 20)))),
  );
}

/** How many different colours a canvas shows, of every thousandth dot or so. */
export async function colours(page, selector) {
  return page.$eval(selector, (canvas) => {
    const context = canvas.getContext("2d");
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let at = 0; at < data.length; at += 4 * 997) seen.add(data.slice(at, at + 4).join());
    return seen.size;
  });
}

/** A box in the window's coordinates. */
export async function box(page, selector) {
  const found = await page.locator(selector).first().boundingBox();
  assert.ok(found, `${selector} can be seen`);
  return found;
}

export async function text(page, selector) {
  const found = (await page.locator(selector).first().textContent()) ?? "";
  // Figures and their units are held together.
  return found.replaceAll("\u00a0", " ");
}
