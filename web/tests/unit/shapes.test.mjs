import assert from "node:assert/strict";
import test from "node:test";
import { page } from "../sample.mjs";
import { source } from "../sources.mjs";

const { FlameTree, kindOf, LIBRARY_ONLY, NO_FRAMES } = await source("flametree");
const { layout, both, matchedBytes } = await source("flamelayout");
const { Model } = await source("model");
const { sourceOf } = await source("source");
const { within, zoomed, panned, thinned, isWhole } = await source("span");
const { stacked } = await source("stack");
const maps = await source("maplayout");
const { stackOrder } = await source("classes");

/** `main > forward` and its bytes. */
function shape(model, tree, weights) {
  const lines = {};
  for (let node = 0; node < tree.length; node++) {
    const names = tree.path(node).map((at) => {
      const kind = kindOf(tree.what[at]);
      if (kind.is === "frame") return model.strings[model.frames.function[kind.index]];
      return "index" in kind ? `${kind.is} ${kind.index}` : kind.is;
    });
    if (weights.bytes[node] > 0) lines[names.slice(1).join(" > ")] = weights.bytes[node];
  }
  return lines;
}

test("the tree by stack holds whole blocks, library frames folded into their callers", async () => {
  const model = new Model(page());
  const moment = await sourceOf(model).moment(3);
  const folded = new FlameTree(model, false, true);
  assert.deepEqual(shape(model, folded, folded.weigh(moment)), { "": 640, main: 640, "main > forward": 512 });
  const open = new FlameTree(model, false, false);
  assert.deepEqual(shape(model, open, open.weigh(moment)), {
    "": 640,
    main: 640,
    "main > linear": 512,
    "main > linear > forward": 512,
  });
});

test("the tree by class holds what was asked for, and the rounding", async () => {
  const model = new Model(page());
  const tree = new FlameTree(model, true, true);
  assert.deepEqual(shape(model, tree, tree.weigh(await sourceOf(model).moment(3))), {
    "": 640,
    "class 0": 100,
    "class 0 > main": 100,
    "class 1": 500,
    "class 1 > main": 500,
    "class 1 > main > forward": 500,
    "class 2": 40,
  });
});

test("stacks without own frames, and blocks without any", async () => {
  const data = page();
  data.memory.sorts.place = [6, 0, 0];
  const model = new Model(data);
  const tree = new FlameTree(model, false, true);
  tree.weigh(await sourceOf(model).moment(3));
  assert.ok(tree.what.includes(LIBRARY_ONLY));
  assert.ok(tree.what.includes(NO_FRAMES));
});

test("what the file leaves out closes the sum", async () => {
  const data = page();
  data.memory.complete = false;
  data.memory.of_blocks = 9;
  data.timeline.classes_delta[1][3] += 1000;
  data.timeline.classes_delta[1][4] -= 1000;
  const model = new Model(data);
  const moment = await sourceOf(model).moment(3);
  for (const byClass of [false, true]) {
    const tree = new FlameTree(model, byClass, true);
    const weights = tree.weigh(moment);
    assert.equal(weights.bytes[0], 1640);
    assert.equal(weights.bytes[tree.notKept(1)], 1000);
  }
});

test("a layout fills its width, and what is searched counts once", async () => {
  const model = new Model(page());
  const tree = new FlameTree(model, false, true);
  const weights = tree.weigh(await sourceOf(model).moment(3));
  const { rects, rows } = layout(tree, tree.children(), weights.bytes, weights.bytes, 0, 640);
  assert.equal(rows, 3);
  assert.deepEqual(
    rects.map(({ row, x, width }) => [row, x, width]),
    [
      [0, 0, 640],
      [1, 0, 640],
      [2, 0, 512],
    ],
  );
  assert.equal(matchedBytes(tree, weights.bytes, Uint8Array.from([0, 1, 1])), 640);
});

test("a comparison has room for both moments", async () => {
  const model = new Model(page());
  const source = sourceOf(model);
  const tree = new FlameTree(model, false, true);
  const then = await source.moment(2);
  const now = await source.moment(3);
  tree.weigh(then);
  const extent = both(tree, tree.weigh(now), tree.weigh(then));
  assert.equal(extent[0], 640);
});

test("zooming stays within the whole", () => {
  const whole = { low: 0, high: 100 };
  assert.deepEqual(zoomed({ low: 0, high: 100 }, 0.5, 50), { low: 25, high: 75 });
  assert.deepEqual(zoomed({ low: 0, high: 100 }, 0.5, 0), { low: 0, high: 50 });
  assert.deepEqual(within({ low: -20, high: 20 }, whole, 8), { low: 0, high: 40 });
  assert.deepEqual(within({ low: 50, high: 51 }, whole, 8), { low: 46.5, high: 54.5 });
  assert.deepEqual(within({ low: -500, high: 900 }, whole, 8), whole);
  assert.deepEqual(panned({ low: 1, high: 2 }, 3), { low: 4, high: 5 });
  assert.ok(isWhole({ low: -1, high: 101 }, whole));
  assert.deepEqual(thinned([1, 2, 3, 10, 11], 5), [1, 10]);
});

test("areas are stacked from the bottom", () => {
  const columns = [Float64Array.of(1, 2), Float64Array.of(10, 20), Float64Array.of(100, 200)];
  assert.deepEqual(
    stacked(columns, [2, 0, 1]).map((column) => [...column]),
    [
      [100, 200],
      [101, 202],
      [111, 222],
    ],
  );
  assert.deepEqual(
    stackOrder([{ name: "rounding" }, { name: "activations" }, { name: "parameters" }, { name: "new" }]),
    [2, 1, 0, 3],
  );
});

test("segments are drawn to scale, long ones over several rows", () => {
  const ranges = [{ size: 100 }, { size: 250 }, { size: 10 }];
  const rows = maps.rows(ranges, [{ title: "lane", ranges: [0, 1, 2] }], 100, 200);
  assert.equal(rows[0].title, "lane");
  const bars = rows.slice(1).map((row) => row.bars.map(({ range, from, to, width }) => [range, from, to, width]));
  assert.deepEqual(bars, [
    [[0, 0, 100, 200]],
    [[1, 0, 100, 200]],
    [[1, 100, 200, 200]],
    [
      [1, 200, 250, 100],
      [2, 0, 10, 20],
    ],
  ]);
  assert.equal(maps.rowBytes(0, 0, 18), 4096);
});

test("every range of every group is drawn, to scale", () => {
  const sizes = [32, 32, 2, 16, 16, 2, 100];
  const ranges = sizes.map((size, index) => ({ size, free: 0, largestFree: 0, segments: 1, lane: index % 3 }));
  const all = ranges.map((_, index) => index);
  const rows = maps.rows(
    ranges,
    maps.groups(ranges, all, (lane) => `lane ${lane}`),
    32,
    1254,
  );
  const widths = new Float64Array(ranges.length);
  rows.forEach((row, at) => {
    if ("title" in row) assert.ok("bars" in rows[at + 1], "a heading has something below it");
    else for (const bar of row.bars) widths[bar.range] += bar.width;
  });
  sizes.forEach((size, index) => assert.ok(Math.abs(widths[index] - (size * 1254) / 32) < 1e-6, `${index}`));
});
