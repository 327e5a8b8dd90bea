import assert from "node:assert/strict";
import test from "node:test";
import { source } from "../sources.mjs";

const format = await source("format");

test("sizes have three digits and binary units, as in every other form of a report", () => {
  for (const [bytes, text] of [
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1.00 KiB"],
    [86_736_896, "82.7 MiB"],
    [262_144_000, "250 MiB"],
    [1_048_575, "1.00 MiB"],
    [39_151_730_688, "36.5 GiB"],
    [27_130_997_760, "25.3 GiB"],
    [2 ** 64 - 1, "16.0 EiB"],
    // Ties go to the even digit.
    [1152, "1.12 KiB"],
    [1408, "1.38 KiB"],
    [9856, "9.62 KiB"],
    [10_496, "10.2 KiB"],
    [102_912, "100 KiB"],
    [103_936, "102 KiB"],
  ]) {
    assert.equal(format.bytes(bytes), text);
  }
  assert.equal(format.bytes(Number.NaN), "0 B");
  assert.equal(format.change(-1024), "\u22121.00 KiB");
});

test("shares never hide a rest", () => {
  const shares = [
    [0, 10],
    [1, 100_000],
    [43, 100],
    [99_999, 100_000],
    [10, 10],
    [0, 0],
  ].map(([part, whole]) => format.share(part, whole));
  assert.deepEqual(shares, ["0 %", "<1 %", "43 %", ">99 %", "100 %", "0 %"]);
});

test("figures are easy to read", () => {
  assert.equal(format.count(999), "999");
  assert.equal(format.count(1_234_567), "1,234,567");
  assert.equal(format.counted(1, "event"), "1 event");
  for (const [time, text] of [
    [12, "12 µs"],
    [12_345, "12.3 ms"],
    [3_214_000, "3.21 s"],
    [65_000_000, "1 min 05 s"],
    [7_380_000_000, "2 h 03 min"],
  ]) {
    assert.equal(format.duration(time), text);
  }
  assert.deepEqual(format.axisTimes([0, 500_000, 1_000_000]), ["0.0 s", "0.5 s", "1.0 s"]);
  assert.deepEqual(format.axisTimes([0, 20_000, 40_000]), ["0 ms", "20 ms", "40 ms"]);
});

test("addresses are read as people write them", () => {
  assert.equal(format.hex(0x7f1234), "0x7f1234");
  assert.equal(format.hex(2 ** 64), "0x10000000000000000");
  for (const [text, address] of [
    ["0x7F00", 0x7f00],
    [" 4096 ", 4096],
    ["7f00ab", 0x7f00ab],
    ["train.py", null],
    ["", null],
  ]) {
    assert.equal(format.address(text), address);
  }
});

test("settings can be pasted into a shell", () => {
  assert.equal(format.confLine("expandable_segments:True"), "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  assert.equal(format.confLine("a'$(b)"), "export PYTORCH_CUDA_ALLOC_CONF='a'\\''$(b)'");
  assert.equal(format.confLine(""), "unset PYTORCH_CUDA_ALLOC_CONF");
});

test("foreign text loses its teeth and its length", () => {
  assert.equal(format.clean("a\u001b[2J\u009bb\nc\u202e"), "a\ufffd[2J\ufffdb c\ufffd");
  assert.equal(format.clean("x".repeat(1_000_000)).length, 2001);
  assert.equal(format.place({ file: "/a/b/train.py", line: 16, function: "step" }), "train.py:16 in step");
});
