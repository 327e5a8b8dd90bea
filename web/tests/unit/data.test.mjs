import assert from "node:assert/strict";
import test from "node:test";
import { gzipSync } from "node:zlib";
import { page } from "../sample.mjs";
import { source } from "../sources.mjs";

const { Model } = await source("model");
const { sourceOf } = await source("source");
const { walk } = await source("walk");
const load = await source("load");
const { rangesAt, pieces } = await source("ranges");
const { readLink, writeLink } = await source("link");
const { after, from, nearest } = await source("columns");

test("a page goes through base64 and gzip", async () => {
  const text = JSON.stringify(page());
  assert.deepEqual(load.parsed(await load.decoded(gzipSync(text).toString("base64"))), page());
});

test("what cannot be read is said", async () => {
  await assert.rejects(load.decoded("AAAA"), /damaged or cut short/);
  await assert.rejects(load.decoded("***"), /damaged or cut short/);
  assert.throws(() => load.parsed("{"), /not readable/);
  assert.throws(() => load.parsed('{"schema": "gpuheap.page/9"}'), /another form/);
});

test("blocks are held from their birth to their free", () => {
  const { memory } = new Model(page());
  const held = [0, 1, 2, 3, 4, 5, 6].map((tick) => [...memory.held(tick)]);
  assert.deepEqual(held, [[], [0], [0, 1], [0, 2], [0, 2], [0], [0]]);
  assert.deepEqual(memory.waiting(2), []);
  assert.deepEqual(memory.waiting(4), [1]);
  assert.deepEqual(memory.waiting(5), []);
  const { born, freed } = memory.changes(1, 3);
  assert.deepEqual([[...born], [...freed]], [[1, 2], [1]]);
});

test("what blocks say adds up to the timeline", async () => {
  const model = new Model(page());
  const { timeline, memory } = model;
  const walked = walk(memory, 0, model.last, 100, model.classes.length);
  for (const [index, tick] of walked.ticks.entries()) {
    const at = [...timeline.ticks].indexOf(tick);
    if (at < 0) continue;
    assert.equal(walked.allocated[index], timeline.allocated[at], `allocated at ${tick}`);
    assert.equal(walked.reserved[index], timeline.reserved[at], `reserved at ${tick}`);
    walked.classes.forEach((column, name) => assert.equal(column[index], timeline.classes[name][at]));
  }
  // Tick 4 is not in the timeline.
  const moment = await sourceOf(model).moment(4);
  assert.equal(moment.allocated, 640);
  assert.deepEqual([...moment.classes], [100, 500, 40]);
  assert.equal(moment.time, 40);
});

test("a walk keeps peaks and valleys however few points it may have", () => {
  const model = new Model(page());
  const walked = walk(model.memory, 0, model.last, 2, model.classes.length);
  assert.equal(Math.max(...walked.allocated), 640);
  assert.equal(Math.max(...walked.reserved), 1536);
  assert.equal(walked.ticks[walked.ticks.length - 1], model.last);
});

test("a site's bytes through time", () => {
  const model = new Model(page());
  const wanted = model.memory.sorts.place.map((place) => Number(model.tree.site[place] === 1));
  assert.deepEqual([...model.memory.through(model.timeline.ticks, Uint8Array.from(wanted))], [0, 0, 256, 512, 0, 0]);
});

test("ticks outside of the recording, or left out of the file, become ones that can be shown", () => {
  assert.equal(sourceOf(new Model(page())).snap(1e15), 6);
  assert.equal(sourceOf(new Model(page())).snap(-1), 0);
  const some = page();
  some.memory.complete = false;
  some.memory.exact_ticks = [4];
  const source = sourceOf(new Model(some));
  assert.equal(source.snap(4), 4);
  some.memory.exact_ticks = [];
  assert.equal(sourceOf(new Model(some)).snap(4), 3);
});

test("segments become ranges with blocks, free pieces and waiting blocks", () => {
  const model = new Model(page());
  const { ranges, waiting, strays } = rangesAt(model.memory, 4);
  assert.deepEqual(
    ranges.map(({ address, size, blocks, free, largestFree }) => ({ address, size, blocks, free, largestFree })),
    [
      { address: 0x1000, size: 1024, blocks: [0, 1], free: 640, largestFree: 512 },
      { address: 0x1400, size: 512, blocks: [2], free: 0, largestFree: 0 },
    ],
  );
  assert.equal(strays, 0);
  const list = pieces(model.memory, ranges[0], waiting).map(({ address, size, row, waiting: waits }) => [
    address,
    size,
    row,
    waits,
  ]);
  assert.deepEqual(list, [
    [0x1000, 128, 0, false],
    [0x1080, 128, -1, false],
    [0x1100, 256, 1, true],
    [0x1200, 512, -1, false],
  ]);
});

test("neighbours of an expandable range are one", () => {
  const data = page();
  data.memory.segments = {
    born_delta: [0, 0, 0],
    life: [-1, -1, -1],
    address_delta: [0x3000, -0x2000, 0x1000],
    size: [4096, 4096, 4096],
    lane: [0, 0, 0],
    expandable: [1, 1, 1],
  };
  const { ranges } = rangesAt(new Model(data).memory, 0);
  assert.deepEqual(
    ranges.map(({ address, size, segments }) => [address, size, segments]),
    [[0x1000, 12288, 3]],
  );
});

test("an empty recording is a page, too", async () => {
  const nothing = page({
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
  nothing.memory = {
    ...nothing.memory,
    blocks: { born_delta: [], life: [], address_delta: [], sort: [], pending: [] },
    sorts: { place: [], rule: [], requested: [], size: [], lane: [] },
    segments: { born_delta: [], life: [], address_delta: [], size: [], lane: [], expandable: [] },
  };
  const model = new Model(nothing);
  const moment = await sourceOf(model).moment(model.firstTick());
  assert.equal(moment.allocated, 0);
  assert.equal(moment.reserved, 0);
});

test("links name a part and a moment", () => {
  assert.deepEqual(readLink("#map&at=123"), { target: "map", tick: 124 });
  assert.deepEqual(readLink("#at=5"), { target: "", tick: 6 });
  assert.deepEqual(readLink("#at=start"), { target: "", tick: 0 });
  assert.deepEqual(readLink("#finding-1"), { target: "finding-1", tick: null });
  assert.deepEqual(readLink('#"><img>&at=-1&at=1e9'), { target: "", tick: null });
  assert.equal(writeLink({ target: "map", tick: 7 }), "#map&at=6");
  assert.equal(writeLink({ target: "", tick: 0 }), "#at=start");
  assert.equal(writeLink({ target: "", tick: null }), "");
});

test("searching sorted columns", () => {
  const column = [1, 3, 3, 8];
  assert.deepEqual(
    [0, 1, 3, 9].map((value) => after(column, value)),
    [0, 1, 3, 4],
  );
  assert.deepEqual(
    [0, 1, 3, 9].map((value) => from(column, value)),
    [0, 0, 1, 4],
  );
  assert.deepEqual(
    [0, 2, 6, 99].map((value) => nearest(column, value)),
    [0, 0, 3, 3],
  );
  assert.equal(nearest([], 1), -1);
});
