// Whatever a recording holds is text, and no amount of it stops the page.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";
import { deltas, page as sample } from "../sample.mjs";
import { drawn, explain, open, pages, PARTS, shell, show, text } from "./support.mjs";

const MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script>";
const CONTROL = "a\u202eb\u0000c\u001b[2Jd\u2066e";

/** A recording as JSON, whose every name is `name`. */
function snapshot(name) {
  const frames = [{ name, filename: `/home/${name}.py`, line: 3 }];
  const event = (action, addr, size, time) => ({ action, addr, size, stream: 0, time_us: time, frames });
  return {
    segments: [
      {
        device: 0,
        address: 4096,
        total_size: 2_097_152,
        stream: 0,
        segment_type: "small",
        allocated_size: 512,
        active_size: 512,
        requested_size: 512,
        segment_pool_id: [0, 0],
        is_expandable: false,
        blocks: [
          { address: 4096, size: 512, requested_size: 512, state: "active_allocated", frames: [] },
          { address: 4608, size: 2_096_640, requested_size: 0, state: "inactive", frames: [] },
        ],
      },
    ],
    device_traces: [
      [
        { ...event("segment_alloc", 4096, 2_097_152, 1), frames: [] },
        event("alloc", 4096, 512, 2),
        event("alloc", 4608, 512, 3),
        event("free_requested", 4608, 512, 4),
        event("free_completed", 4608, 512, 5),
      ],
    ],
    allocator_settings: { PYTORCH_CUDA_ALLOC_CONF: name },
    external_annotations: [],
  };
}

for (const [title, name] of [
  ["markup", MARKUP],
  ["control characters", CONTROL],
  ["a name of a megabyte", "x".repeat(1_000_000)],
]) {
  test(`${title} in a recording stays text`, async () => {
    mkdirSync(pages, { recursive: true });
    const file = path.join(pages, `hostile ${title}.json`);
    writeFileSync(file, JSON.stringify(snapshot(name)));
    const { page, close } = await open(explain(file));
    for (const id of PARTS) await show(page, id);
    await page.locator("#sites tbody button").first().click();
    await show(page, "map");
    await page.locator(".map").focus();
    await page.keyboard.press("ArrowRight");
    await drawn(page);
    assert.equal(await page.locator("img, iframe, object, main script").count(), 0);
    const shown = await page.locator("main").innerText();
    assert.ok(!/[\u0000-\u0008\u001b\u202e\u2066]/.test(shown), "no character that steers");
    assert.ok(shown.length < 100_000, `${shown.length}`);
    if (name === MARKUP) assert.ok(shown.includes("<img src=x onerror=alert(1)>"));
    await close();
  });
}

test("names in the report, too", async () => {
  const data = sample();
  const site = { file: MARKUP, line: 1, function: MARKUP };
  const finding = {
    id: MARKUP,
    kind: "leak",
    title: MARKUP,
    site,
    stack: [site],
    bytes: 2 ** 64,
    bytes_per_step: 1,
    confidence: "low",
  };
  data.report.verdict = { kind: MARKUP, headline: MARKUP, site, remedy: MARKUP, confidence: "low" };
  data.report.findings = [
    {
      ...finding,
      evidence: [MARKUP, CONTROL],
      remedy: { text: MARKUP, conf: MARKUP, saves_bytes: 1 },
      growth: [1, 2 ** 64],
      event: 1e12,
    },
  ];
  data.report.source.notes = [MARKUP];
  data.report.source.path = MARKUP;
  data.report.ledgers = {
    peak: [{ part: MARKUP, kind: "class", class: "parameters", bytes: 2 ** 64, detail: MARKUP }],
  };
  data.report.classes = [{ class: MARKUP, rule: MARKUP, bytes: 1, blocks: 1 }];
  data.whatif = [
    {
      conf: MARKUP,
      role: "recorded",
      peak_reserved_bytes: 1,
      peak_allocated_bytes: 1,
      oom: true,
      exact: false,
      best: false,
      ticks_delta: [0, 3],
      reserved_delta: [1, 1],
    },
  ];
  const { page, close } = await open(shell("names", data));
  for (const id of PARTS) await show(page, id);
  assert.equal(await page.locator("img, main script").count(), 0);
  await page.getByRole("button", { name: /^Show at/ }).click();
  assert.match(await text(page, ".moment-text"), /^At the end/, "a moment that is not there becomes the nearest");
  await close();
});

test("an empty recording says so", async () => {
  const data = sample({
    steps: { ticks_delta: [] },
    moments: [],
    sites: [],
    lanes: [],
    places: {
      strings: [""],
      frames: { function: [], file: [], line: [], kind: [] },
      tree: { caller: [0], frame: [-1], site: [-1] },
    },
    timeline: { ticks_delta: [], time_delta: [], reserved_delta: [], classes_delta: [[], [], []] },
  });
  data.memory.blocks = { born_delta: [], life: [], address_delta: [], sort: [], pending: [] };
  data.memory.sorts = { place: [], rule: [], requested: [], size: [], lane: [] };
  data.memory.segments = { born_delta: [], life: [], address_delta: [], size: [], lane: [], expandable: [] };
  const { page, close } = await open(shell("empty", data), { hash: "#map&at=99" });
  for (const id of PARTS) await show(page, id);
  for (const id of ["timeline", "flame", "map"]) {
    if (await page.locator(`.${id}`).count()) await page.locator(`.${id}`).focus();
    for (const key of ["ArrowRight", "ArrowDown", "Enter", "+", "0", "Escape", "]", "p"])
      await page.keyboard.press(key);
  }
  assert.match(await text(page, "#timeline p"), /no events/);
  await close();
});

test("a file that leaves blocks out says so, and its sums still close", async () => {
  const data = sample();
  data.memory.complete = false;
  data.memory.of_blocks = 1000;
  data.memory.exact_ticks = [6];
  data.timeline.classes_delta[1][3] += 4096;
  data.timeline.classes_delta[1][4] -= 4096;
  const { page, close } = await open(shell("incomplete", data), { hash: "#at=2" });
  for (const id of PARTS) await show(page, id);
  assert.match(await text(page, "#flame .note"), /sums are exact, and `gpuheap serve FILE` shows every block/);
  assert.ok(await page.locator("#map .note").isVisible());
  await page.locator(".flame").focus();
  await page.keyboard.press("ArrowDown");
  assert.match(await text(page, "#flame .info"), /smaller blocks not kept in this file \(activations\) · 4\.00 KiB/);
  assert.match(await text(page, "#about"), /keeps 3 of 1,000 blocks.*and all at these moments: end/);
  await page.keyboard.press("e");
  await drawn(page);
  assert.ok(await page.locator("#flame .note").isHidden());
  await close();
});

test("a hundred thousand sites and deep stacks", async () => {
  const count = 100_000;
  const data = sample();
  const numbers = Array.from({ length: count }, (_, index) => index);
  data.places.strings = ["", "file.py", ...numbers.map((index) => `function_${index}`)];
  data.places.frames = {
    function: numbers.map((index) => index + 2),
    file: numbers.map(() => 1),
    line: numbers.map((index) => index + 1),
    kind: numbers.map(() => 1),
  };
  // The first two thousand call each other, the others are called from the root.
  const tree = data.places.tree;
  tree.caller = [0, ...numbers.map((index) => (index < 2000 ? index : 0))];
  tree.frame = [-1, ...numbers];
  tree.site = [-1, ...numbers];
  data.sites = numbers.map((index) => ({
    ...data.sites[0],
    function: `function_${index}`,
    line: index + 1,
    at: [index, 0],
  }));
  data.memory.sorts = {
    place: numbers.map((index) => index + 1),
    rule: numbers.map((index) => index % 2),
    requested: numbers.map((index) => index + 1),
    size: numbers.map((index) => index + 1),
    lane: numbers.map(() => 0),
  };
  data.memory.blocks = {
    born_delta: deltas(numbers.map(() => 1)),
    life: numbers.map(() => -1),
    address_delta: deltas(numbers.map((index) => 0x1000 + index * 0x100_000)),
    sort: numbers,
    pending: [],
  };
  data.memory.segments = {
    born_delta: deltas(numbers.map(() => 0)),
    life: numbers.map(() => -1),
    address_delta: deltas(numbers.map((index) => 0x1000 + index * 0x100_000)),
    size: numbers.map(() => 0x100_000),
    lane: numbers.map(() => 0),
    expandable: numbers.map(() => 0),
  };
  const { page, close } = await open(shell("many", data), { hash: "#at=2" });
  for (const id of PARTS) await show(page, id);
  assert.match(await text(page, "#sites .pager"), /page 1 of 1000/);
  await page.getByRole("button", { name: "Next", exact: true }).click();
  assert.match(await text(page, "#sites .pager"), /page 2 of 1000/);
  await page.getByLabel("Filter sites").fill("function_99999");
  assert.equal(await page.locator("#sites tbody tr").count(), 1);
  await page.getByLabel("Search frames in the flame graph").fill("function_1999");
  await drawn(page);
  assert.match(await text(page, "#flame .found"), /match/);
  await close();
});

test("data that cannot be read is a message, not an empty page", async () => {
  for (const [name, data, message] of [
    ["cut", "{", /not readable/],
    ["later", '{"schema": "gpuheap.page/9"}', /another form of data/],
    ["missing", null, /damaged or cut short/],
  ]) {
    const { page, close } = await open(shell(`unreadable-${name}`, data), { ready: "failed" });
    assert.match(await text(page, "[role=alert]"), message);
    await close();
  }
});
