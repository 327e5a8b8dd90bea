// What a reader does with the page: hover, zoom, pick, search, sort, compare, link, print.

import assert from "node:assert/strict";
import test from "node:test";
import { box, colours, drawn, explain, open, show, text } from "./support.mjs";

const file = explain("examples/gpt2_varlen.pickle.gz");
const leak = explain("examples/loss_accumulate.pickle.gz");

/** A test with a page of its own. */
function on(name, options, run, recording = file) {
  test(name, async () => {
    const { page, close } = await open(recording, options);
    await run(page);
    await close();
  });
}

const at = (page) => page.evaluate(() => new URLSearchParams(location.hash.replace(/^#([\w-]+&)?/, "")).get("at"));
const range = (page) => page.locator(".plot .u-axis").count();

on("hovering the timeline names what changed", {}, async (page) => {
  await show(page, "timeline");
  const plot = await box(page, ".plot .u-over");
  await page.mouse.move(plot.x + plot.width * 0.6, plot.y + 100);
  const tip = await text(page, ".timeline-tip");
  assert.match(tip, /after event [\d,]+ · [\d.]+ s/);
  assert.match(tip, /GiB allocated of .* reserved/);
  assert.match(tip, /Changed in the last \d+ events:.*\+.* allocated in \d+ blocks.*capture\.py:\d+ in step/);
  await page.mouse.move(5, 5);
  assert.ok(await page.locator(".timeline-tip").isHidden());
});

on("a click picks the moment of every view, and a link reproduces it", {}, async (page) => {
  await show(page, "timeline");
  const before = [await text(page, ".amounts"), await text(page, "#flame .info"), await text(page, "#map .figures")];
  const plot = await box(page, ".plot .u-over");
  await page.mouse.click(plot.x + plot.width * 0.5, plot.y + 150);
  await show(page, "flame");
  await show(page, "map");
  const after = [await text(page, ".amounts"), await text(page, "#flame .info"), await text(page, "#map .figures")];
  after.forEach((value, index) => assert.notEqual(value, before[index]));
  assert.ok(after[2].startsWith("After event"));
  const tick = await at(page);
  assert.match(tick, /^\d+$/);
  assert.match(await text(page, "[role=status]"), /allocated of/);
  assert.match(
    await text(page, ".moment-text"),
    new RegExp(`after event ${Number(tick).toLocaleString("en")}\\b`, "i"),
  );
  const again = await open(file, { hash: `#map&at=${tick}` });
  await show(again.page, "flame");
  await show(again.page, "map");
  assert.equal(await text(again.page, ".amounts"), after[0]);
  assert.equal(await text(again.page, "#map .figures"), after[2]);
  await again.close();
});

on("the timeline zooms by drag, keys, wheel and strip, and shows all again", {}, async (page) => {
  await show(page, "timeline");
  const plot = await box(page, ".plot .u-over");
  const spot = { x: plot.x + plot.width * 0.5, y: plot.y + 60 };
  const when = async () => {
    await page.mouse.move(spot.x + 1, spot.y);
    await page.mouse.move(spot.x, spot.y);
    return text(page, ".timeline-tip .faint");
  };
  const whole = await when();
  await page.mouse.move(plot.x + plot.width * 0.8, spot.y);
  await page.mouse.down();
  await page.mouse.move(plot.x + plot.width * 0.9, spot.y, { steps: 5 });
  await page.mouse.up();
  await drawn(page);
  const dragged = await when();
  assert.notEqual(dragged, whole);
  assert.equal(await at(page), null, "a drag picks nothing");
  await page.locator(".timeline").focus();
  const seen = new Set([dragged]);
  for (const key of ["+", "Shift+ArrowRight", "-", "Shift+ArrowLeft"]) {
    await page.keyboard.press(key);
    await drawn(page);
    if (key.length === 1) continue;
    const now = await when();
    assert.ok(!seen.has(now), key);
    seen.add(now);
  }
  await page.mouse.wheel(0, 200);
  await drawn(page);
  await page.keyboard.press("0");
  await drawn(page);
  assert.equal(await when(), whole);
  const strip = await box(page, ".strip");
  await page.mouse.move(strip.x + strip.width * 0.2, strip.y + 20);
  await page.mouse.down();
  await page.mouse.move(strip.x + strip.width * 0.3, strip.y + 20, { steps: 4 });
  await page.mouse.up();
  await drawn(page);
  assert.notEqual(await when(), whole);
  await page.mouse.dblclick(spot.x, spot.y);
  await drawn(page);
  assert.equal(await when(), whole);
  await page.locator("#timeline").getByText("Events", { exact: true }).click();
  await drawn(page);
  assert.notEqual(await when(), whole);
  assert.ok((await range(page)) >= 2);
});

on("far in, single events can be told apart", {}, async (page) => {
  await show(page, "timeline");
  await page.locator(".timeline").focus();
  await page.locator("#timeline").getByText("Events", { exact: true }).click();
  await page.locator(".timeline").focus();
  for (let times = 0; times < 14; times++) await page.keyboard.press("+");
  await drawn(page);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.match(await text(page, ".timeline-tip"), /Changed (by this event|in the last \d events):/);
  await page.keyboard.press("Enter");
  assert.match(await at(page), /^\d+$/);
});

on("flags, buttons and keys go to the moments and the steps", {}, async (page) => {
  await show(page, "timeline");
  await page.locator(".flag.end").click();
  assert.match(await text(page, ".moment-text"), /^At the end/);
  await page.keyboard.press("p");
  assert.match(await text(page, ".moment-text"), /^At the peak of allocated memory/);
  await page.keyboard.press("r");
  assert.match(await text(page, ".moment-text"), /^At the peak of reserved memory/);
  const before = Number(await at(page));
  await page.getByRole("button", { name: "End of the next step" }).click();
  const next = Number(await at(page));
  assert.ok(next > before);
  await page.keyboard.press("[");
  assert.ok(Number(await at(page)) < next);
});

on("links go to findings and parts", { hash: "#finding-1" }, async (page) => {
  assert.equal(await page.evaluate(() => document.activeElement?.id), "finding-1");
  const top = await page.locator("#finding-1").evaluate((element) => element.getBoundingClientRect().top);
  assert.ok(top >= 0 && top < 300, `${top}`);
  await page.evaluate(() => (location.hash = "#sites"));
  await page.waitForFunction(() => document.activeElement?.id === "sites");
  await page.keyboard.press("4");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "flame");
});

on(
  "a finding has a link by its own name, its growth, and a moment",
  { hash: "#leak-1" },
  async (page) => {
    assert.equal(await page.evaluate(() => document.activeElement?.id), "finding-1");
    await drawn(page);
    assert.ok(await page.locator("#finding-1 .growth canvas").isVisible());
    await page
      .locator("#finding-1")
      .getByRole("button", { name: /Show at/ })
      .click();
    assert.match(await at(page), /^\d+$/);
    assert.ok(await page.locator("#timeline .mark-site").isVisible(), "its site is a line of the timeline");
    const unfold = page.locator("#findings .folded button").first();
    if (await unfold.count()) {
      const frames = await page.locator("#findings .stack li").count();
      await unfold.click();
      assert.ok((await page.locator("#findings .stack li").count()) > frames);
    }
  },
  leak,
);

on("the flame graph names, searches, zooms and compares", {}, async (page) => {
  await show(page, "flame");
  const canvas = await box(page, "#flame canvas");
  await page.mouse.move(canvas.x + 100, canvas.y + 50);
  assert.match(await text(page, "#flame .info"), /capture\.py:\d+ in \w+ · .* · \d+ % of allocated · [\d,]+ blocks/);
  await page.getByLabel("Search frames in the flame graph").fill("step");
  assert.match(await text(page, "#flame .found"), /GiB \(\d+ %\) match/);
  await page.getByLabel("Search frames in the flame graph").fill("capture.py:57");
  assert.match(await text(page, "#flame .found"), /5\.60 GiB \(22 %\) match/);
  await page.getByLabel("Search frames in the flame graph").fill("");
  await page.mouse.click(canvas.x + 100, canvas.y + 50);
  assert.match(await text(page, "#flame .crumbs"), /^everything › .*loop/);
  await page.locator(".flame").focus();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#flame .crumbs").isHidden());
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowRight");
  assert.match(await text(page, "#flame .info"), /capture\.py:51/);
  await page.getByLabel("Library frames", { exact: true }).check();
  await drawn(page);
  assert.ok((await box(page, "#flame canvas")).height > canvas.height, "there is more to see");
  await page.getByLabel("Library frames", { exact: true }).uncheck();
  await page.getByText("Class, then stack").click();
  await drawn(page);
  await page.locator(".flame").focus();
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowDown");
  assert.match(await text(page, "#flame .info"), /^activations · 18\.3 GiB/);
  await page.locator("#flame .choice").getByText("Stack", { exact: true }).click();
  await page.getByLabel("Compare the picked moment with").selectOption("End");
  await drawn(page);
  assert.match(await text(page, "#flame .info"), /held .*, compared with .*iB at the end/);
  await page.locator(".flame").focus();
  await page.keyboard.press("ArrowDown");
  assert.match(await text(page, "#flame .info"), /[+\u2212][\d.]+ [GM]iB against/);
  await page.getByText("The largest stacks as a table").click();
  await page.waitForSelector("#flame tbody tr");
  assert.ok((await page.locator("#flame tbody tr").count()) > 1);
});

on("a pinned moment can be compared with", {}, async (page) => {
  await show(page, "flame");
  await page.getByRole("button", { name: "Pin this moment" }).click();
  await page.keyboard.press("e");
  await page.getByLabel("Compare the picked moment with").selectOption({ label: await pinnedLabel(page) });
  await drawn(page);
  assert.match(await text(page, "#flame .info"), /held at the end, compared with .*iB at the peak/);
});

async function pinnedLabel(page) {
  return page.$$eval("#flame option", (options) =>
    options.map((option) => option.textContent).find((name) => name.startsWith("pinned")),
  );
}

on("the segment map names, zooms and finds addresses", {}, async (page) => {
  await show(page, "map");
  const canvas = await box(page, "#map canvas");
  await page.mouse.move(canvas.x + 40, canvas.y + 28);
  const named = await text(page, "#map .info");
  assert.match(named, /^0x[0-9a-f]+ · .*iB .* · .* · born in event [\d,]+, .* old/);
  await page.mouse.click(canvas.x + 40, canvas.y + 28);
  await drawn(page);
  assert.match(await text(page, "#map .crumbs"), /^All segments › 0x/);
  assert.match(await text(page, "#map .detail"), /Address.*Asked for.*Class.*Age.*Freed.*Site.*Stack/s);
  const [address] = /^0x[0-9a-f]+/.exec(named);
  await page.locator(".map").focus();
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#map .crumbs").isHidden());
  await page.getByLabel("Find an address").fill(address);
  await page.getByLabel("Find an address").press("Enter");
  assert.equal(await text(page, "#map .found"), "found");
  assert.ok((await text(page, "#map .info")).startsWith(address));
  await page.getByLabel("Find an address").fill(String(Number(address) + 5));
  await page.getByRole("button", { name: "Find", exact: true }).click();
  assert.ok((await text(page, "#map .info")).startsWith(address), "an address within the block, in decimal");
  await page.getByLabel("Find an address").fill("0x10");
  await page.getByRole("button", { name: "Find", exact: true }).click();
  assert.match(await text(page, "#map .found"), /nothing reserved there/);
  await page.locator(".map").focus();
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await text(page, "#map .info"), named);
  const rows = () => page.locator(".map").evaluate((element) => element.scrollHeight);
  const height = await rows();
  await page.getByRole("button", { name: "Larger" }).click();
  await drawn(page);
  assert.ok((await rows()) > height);
  await page.locator("#map .choice").getByText("Size", { exact: true }).click();
  await page.getByLabel("Group by pool and stream").uncheck();
  await drawn(page);
});

on(
  "the segment map shows every group without scrolling where there are few",
  {},
  async (page) => {
    await show(page, "map");
    const { below, drawn: dots } = await page.locator(".map").evaluate((map) => {
      const canvas = map.querySelector("canvas");
      const ratio = canvas.width / canvas.clientWidth;
      // The last row: the only segment of its group.
      const { data } = canvas.getContext("2d").getImageData(0, (canvas.clientHeight - 10) * ratio, canvas.width, 1);
      let count = 0;
      for (let at = 3; at < data.length; at += 4) if (data[at] > 0) count += 1;
      return { below: map.scrollHeight - map.clientHeight, drawn: count / ratio };
    });
    assert.equal(below, 0, "nothing is out of sight");
    assert.ok(dots > 60 && dots < 100, `${dots}`);
  },
  explain("recordings/models/streams_graphs.pickle.gz"),
);

on("sites are sorted, filtered and selected", {}, async (page) => {
  await show(page, "sites");
  const first = () => page.locator("#sites tbody tr").first().innerText();
  const largest = await first();
  await page.getByRole("button", { name: "blocks", exact: true }).click();
  assert.notEqual(await first(), largest);
  assert.equal(await page.locator("#sites th[aria-sort=descending]").innerText(), "blocks");
  await page.getByRole("button", { name: "blocks", exact: true }).click();
  assert.equal(await page.locator("#sites th[aria-sort=ascending]").innerText(), "blocks");
  const rows = await page.locator("#sites tbody tr").count();
  await page.getByLabel("Filter sites").fill("capture.py:56");
  assert.equal(await page.locator("#sites tbody tr").count(), 1);
  assert.match(await text(page, "#sites .found"), /^1 site$/);
  await page.getByLabel("Filter sites").fill("parameters");
  assert.ok((await page.locator("#sites tbody tr").count()) < rows);
  await page.getByLabel("Filter sites").fill("");
  await page.locator("#sites tbody tr button").first().click();
  assert.equal(await page.locator("#sites tr.chosen").count(), 1);
  await show(page, "timeline");
  assert.ok(await page.locator("#timeline .mark-site").isVisible());
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#sites tr.chosen").count(), 0);
});

on("the ledger has a tab for each moment, by keys, too", {}, async (page) => {
  await show(page, "ledger");
  const visible = () => page.locator("#ledger [role=tabpanel]:not([hidden])").innerText();
  const peak = await visible();
  assert.match(peak, /= reserved\s+36\.5\sGiB/);
  await page.getByRole("tab", { name: "End" }).click();
  assert.notEqual(await visible(), peak);
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("aria-selected")), "true");
});

on("other settings can be hidden and copied", {}, async (page) => {
  await show(page, "whatif");
  assert.match(await text(page, "#whatif p"), /reserves .* less at the peak/);
  assert.ok(await page.locator("#whatif canvas").isVisible());
  const before = await page.locator("#whatif .chart").getAttribute("aria-label");
  await page.getByLabel("Show the line C").uncheck();
  assert.notEqual(await page.locator("#whatif .chart").getAttribute("aria-label"), before);
  await page
    .getByRole("button", { name: /^Copy export/ })
    .first()
    .click();
  await page.waitForFunction(() => /Copied|did not allow/.test(document.querySelector("[role=status]").textContent));
});

on("themes follow the system until one is chosen", {}, async (page) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForSelector("html[data-dark]");
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.getByText("Light", { exact: true }).click();
  assert.equal(await ground(), light);
  await page.reload();
  await page.waitForSelector("html[data-ready]");
  assert.equal(await ground(), light, "the choice is kept");
  await page.getByText("Auto", { exact: true }).click();
  assert.equal(await ground(), dark);
});

on("help lists the keys", {}, async (page) => {
  await page.keyboard.press("?");
  assert.ok(await page.locator("dialog").isVisible());
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("dialog").isHidden());
});

on("everything can be reached by the keyboard, with the focus in sight", {}, async (page) => {
  const seen = new Set();
  for (let times = 0; times < 90; times++) {
    await page.keyboard.press("Tab");
    const where = await page.evaluate(() => {
      const element = document.activeElement;
      if (element === document.body) return { part: "", shown: true };
      const style = getComputedStyle(element);
      const shown = style.outlineStyle !== "none" || element.matches("input[type=radio]");
      return { part: element.closest("section, header, .bar")?.id || element.className, shown };
    });
    assert.ok(where.shown, `the focus can be seen in ${where.part}`);
    seen.add(where.part);
  }
  for (const part of ["verdict", "findings", "timeline", "flame", "map", "ledger", "whatif", "sites"])
    assert.ok(seen.has(part), part);
});

on(
  "a narrow window scrolls one way only",
  { width: 360, height: 700 },
  async (page) => {
    for (const id of ["timeline", "flame", "map", "ledger", "whatif", "sites"]) await show(page, id);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 360, `${wide}`);
  },
  leak,
);

on("a window that becomes narrow takes its charts along", {}, async (page) => {
  for (const id of ["findings", "timeline", "flame", "map", "whatif"]) await show(page, id);
  await page.setViewportSize({ width: 420, height: 700 });
  await drawn(page);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 420, `${wide}`);
  await show(page, "timeline");
  assert.ok((await box(page, ".plot canvas")).width <= 420);
});

on("paper is white, unfolded and sharp", { dark: true }, async (page) => {
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  await drawn(page);
  const { background, folded, closed, blank } = await page.evaluate(() => ({
    background: getComputedStyle(document.querySelector("section")).backgroundColor,
    folded: document.querySelectorAll(".folded").length,
    closed: document.querySelectorAll("details:not([open])").length,
    blank: [...document.querySelectorAll("#flame canvas, #map canvas, .plot canvas")].filter(({ width }) => width < 880)
      .length,
  }));
  assert.deepEqual(
    { background, folded, closed, blank },
    { background: "rgb(255, 255, 255)", folded: 0, closed: 0, blank: 0 },
  );
  assert.ok((await page.locator("#flame details tbody tr").count()) > 1, "the largest stacks are listed");
  assert.equal(await page.locator(".copy:visible, input:visible, [role=tab]:visible").count(), 0, "nothing to press");
  assert.ok((await colours(page, "#flame canvas")) > 2, "the flame graph is drawn");
  assert.ok((await colours(page, "#map canvas")) > 2, "the segment map is drawn");
  const paper = await page.pdf({ format: "A4" });
  assert.ok(paper.length > 20_000);
  await page.emulateMedia({ media: "screen", colorScheme: "dark" });
  await drawn(page);
  assert.ok((await page.locator("details:not([open])").count()) > 0);
});

on(
  "sites have the class of what they hold at the moment, and keep the focus",
  {},
  async (page) => {
    await show(page, "sites");
    const row = page.locator("#sites tbody tr").filter({ hasText: "capture.py:103 in" });
    assert.match(await row.first().innerText(), /optimizer state/);
    await row.getByRole("button").first().focus();
    await page.keyboard.press("Enter");
    await drawn(page);
    assert.match(await page.evaluate(() => document.activeElement.textContent), /^capture\.py:103 in/);
    await page.getByRole("button", { name: "median life", exact: true }).click();
    assert.match(await page.locator("#sites tbody tr").first().innerText(), /\tkept\t/);
  },
  explain("examples/llama_oom.pickle.gz"),
);

on("in a narrow window the timeline's tip stays in sight", { width: 390, height: 800 }, async (page) => {
  await show(page, "timeline");
  const plot = await box(page, ".plot .u-over");
  for (const part of [0.02, 0.4, 0.6, 0.98]) {
    await page.mouse.move(plot.x + plot.width * part, plot.y + 100);
    const tip = await box(page, ".timeline-tip");
    assert.ok(tip.x >= 0 && tip.x + tip.width <= 390, `${part}: ${tip.x} and ${tip.width} wide`);
  }
});
