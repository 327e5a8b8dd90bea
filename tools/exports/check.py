"""Opens what `gpuheap export` writes with the tools that it is for, and compares their figures with the report's.

    python check.py GPUHEAP RECORDINGS_FOLDER EXAMPLES_FOLDER OUT_FOLDER
"""

import csv
import json
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import jsonschema
import pyarrow
import pyarrow.parquet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

HERE = Path(__file__).parent
SUFFIXES = {
    "perfetto": "pftrace",
    "chrome": "chrome.json",
    "pprof": "pb.gz",
    "speedscope": "speedscope.json",
    "firefox": "firefox.json",
    "folded": "folded",
    "csv": "csv",
    "parquet": "parquet",
}
# The formats that describe one moment.
AT_MOMENT = {"pprof", "speedscope", "firefox", "folded"}
SPEEDSCOPE = json.loads((HERE / "node_modules/speedscope/dist/release/file-format-schema.json").read_text())
# The program of gpt2_varlen under other settings: its exports are the same but for addresses.
LIKE_OTHERS = {"gpt2_gc.pickle.gz", "gpt2_cap30.pickle.gz", "gpt2_maxsplit128.pickle.gz"}
# What a number of JavaScript, or a signed one of a profile, holds at most.
JAVASCRIPT = 2**53 - 1
SIGNED = 2**63 - 1
MOST = 2**64 - 1


class Checks:
    """Counts what held and tells what did not."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def equal(self, what, found, expected):
        if found == expected:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {what}: {str(found)[:300]} is not {str(expected)[:300]}", file=sys.stderr)

    def true(self, what, holds, details=""):
        self.equal(f"{what} {details}".strip(), bool(holds), True)


class Case:
    """A device of a recording, with its exports."""

    def __init__(self, program, path, device, out):
        self.program, self.path, self.device = program, path, device
        self.name = path.name.split(".pickle")[0] + ("" if device is None else f"-{device}")
        self.files = {format: out / f"{self.name}.{suffix}" for format, suffix in SUFFIXES.items()}
        self.report = json.loads(self.run("explain", "--json"))
        for format, file in self.files.items():
            at = ["--at", "peak"] if format in AT_MOMENT else []
            self.run("export", "--to", format, "--output", file, *at)
        self.peak = self.report["peak"]["allocated_bytes"]
        self.end = self.report["end"]["allocated_bytes"]
        # Events as the report counts them; allocations of before the first event are held at its tick 0.
        self.event = self.report["peak"]["event"]
        with open(self.files["csv"], newline="", encoding="utf-8") as file:
            self.rows = list(csv.DictReader(file, strict=True))

    def run(self, command, *arguments):
        device = [] if self.device is None else ["--device", str(self.device)]
        run = [self.program, command, self.path, *device, *arguments]
        result = subprocess.run(run, capture_output=True, check=False)
        if result.returncode != 0:
            raise SystemExit(f"{run} failed: {result.stderr.decode()}")
        return result.stdout

    def held(self, row):
        """Whether an allocation is held at the peak."""
        if self.event is None:
            return row["born_event"] == ""
        return (row["born_event"] == "" or int(row["born_event"]) <= self.event) and (
            row["freed_event"] == "" or int(row["freed_event"]) > self.event
        )


def hostile(folder):
    """Recordings that no program makes."""
    names = ["<img src=x onerror=alert(1)>", "=1+1", 'say "no", or; not\r\n', "\0\x1b[31m\u202e", "λ" * 1_000_000, ""]
    base = 0x7F00_0000_0000

    def alloc(index, size, name, time_us):
        frames = [{"filename": name, "name": name, "line": index}, {"filename": "run.py", "name": "main", "line": 1}]
        return {"action": "alloc", "addr": base + index * 2**21, "size": size, "stream": 0, "time_us": time_us,
                "frames": frames}  # fmt: skip

    def snapshot(name, events):
        path = folder / f"{name}.pickle"
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events], "allocator_settings": {}}, 4))
        return path

    free = {"action": "free_requested", "addr": base, "size": 1000, "stream": 0, "frames": [], "time_us": 9}
    return [
        snapshot("no_allocations", [{**alloc(0, 2**21, "f", 5), "action": "segment_alloc"}]),
        snapshot("hostile_names", [*(alloc(i, 1000, name, 5) for i, name in enumerate(names)), free]),
        snapshot("no_times", [alloc(i, 2048, "f", 0) for i in range(50)]),
        snapshot("clock_set_back", [alloc(i, 2048, "f", 10**15 - i * 10**12) for i in range(50)]),
        snapshot("late_times", [alloc(i, 2048, "f", 5 if i == 0 else SIGNED - i) for i in range(20)]),
        snapshot("largest", [{**alloc(i, 2**46, "f", 5 + i), "addr": base + i * 2**47} for i in range(200)]),
    ]


def check_tables(checks, case):
    """CSV by Python and DuckDB, Parquet by DuckDB and pyarrow."""
    table = pyarrow.parquet.read_table(case.files["parquet"])
    columns = table.column_names
    checks.equal(f"{case.name} csv: header", list(case.rows[0]) if case.rows else columns, columns)
    checks.equal(f"{case.name} parquet: rows by pyarrow", table.num_rows, len(case.rows))
    as_text = [tuple("" if value is None else str(value) for value in row.values()) for row in table.to_pylist()]
    checks.true(f"{case.name} parquet: the values of csv", as_text == [tuple(row.values()) for row in case.rows])
    held = [row for row in case.rows if case.held(row)]
    checks.equal(f"{case.name} csv: peak", min(sum(int(row["size_bytes"]) for row in held), MOST), case.peak)
    kept = [row for row in case.rows if row["freed_event"] == ""]
    checks.equal(f"{case.name} csv: end", min(sum(int(row["size_bytes"]) for row in kept), MOST), case.end)

    event = -1 if case.event is None else case.event
    where = f"(born_event IS NULL OR born_event <= {event}) AND (freed_event IS NULL OR freed_event > {event})"
    base = duckdb.connect()
    parquet = f"read_parquet('{case.files['parquet']}')"
    by_duckdb = base.execute(f"SELECT sum(size_bytes::HUGEINT), count(*) FROM {parquet} WHERE {where}").fetchone()
    checks.equal(f"{case.name} parquet: peak by DuckDB", min(by_duckdb[0] or 0, MOST), case.peak)
    # A column without a value would have no type.
    text = f"read_csv('{case.files['csv']}', header = true, max_line_size = 10000000, "
    text += "types = {'born_event': 'BIGINT', 'freed_event': 'BIGINT'})"
    if case.rows:
        by_csv = base.execute(f"SELECT sum(size_bytes::HUGEINT) FROM {text} WHERE {where}").fetchone()[0]
        checks.equal(f"{case.name} csv: peak by DuckDB", min(by_csv or 0, MOST), case.peak)
    by_class = base.execute(
        f"SELECT class, sum(least(requested_bytes, size_bytes)::HUGEINT) FROM {parquet} WHERE {where} GROUP BY class"
    ).fetchall()
    rounding = base.execute(
        f"SELECT sum((size_bytes - least(requested_bytes, size_bytes))::HUGEINT) FROM {parquet} WHERE {where}"
    ).fetchone()[0]
    found = {name: int(value) for name, value in [*by_class, ("rounding", rounding or 0)] if value}
    if case.peak < MOST:
        expected = {name: value for name, value in case.report["peak"]["by_class"].items() if value}
        checks.equal(f"{case.name} parquet: classes by DuckDB", found, expected)


def check_folded(checks, case):
    lines = case.files["folded"].read_bytes().decode().split("\n")
    checks.equal(f"{case.name} folded: ends with a line end", lines.pop(), "")
    matches = [re.fullmatch(r"[^\x00-\x1f\x7f]+ (\d+)", line) for line in lines]
    checks.true(f"{case.name} folded: form", all(matches))
    checks.equal(f"{case.name} folded: peak", min(sum(int(match[1]) for match in matches), MOST), case.peak)


def check_speedscope(checks, case):
    profile = json.loads(case.files["speedscope"].read_text("utf-8"))
    errors = list(jsonschema.Draft202012Validator(SPEEDSCOPE).iter_errors(profile))
    checks.equal(f"{case.name} speedscope: schema", [error.message for error in errors[:3]], [])
    shown = profile["profiles"][profile["activeProfileIndex"]]
    checks.true(f"{case.name} speedscope: moment", shown["name"].startswith("held at the peak"), shown["name"])
    for part in profile["profiles"]:
        checks.equal(f"{case.name} speedscope: end of {part['name']}", part["endValue"], min(sum(part["weights"]), MOST))
    if case.peak <= JAVASCRIPT:
        checks.equal(f"{case.name} speedscope: peak", sum(shown["weights"]), case.peak)
        end = next(part for part in profile["profiles"] if part["name"].startswith("held at the end"))
        checks.equal(f"{case.name} speedscope: end", sum(end["weights"]), case.end)
    frames = len(profile["shared"]["frames"])
    stacks = [stack for part in profile["profiles"] for stack in part["samples"]]
    checks.true(f"{case.name} speedscope: frames", all(0 <= at < frames for stack in stacks for at in stack))


def check_firefox(checks, case):
    """The profiler's own code is in no registry: this is its documented format, and a test in Rust compares with the
    library that other profilers write it with."""
    profile = json.loads(case.files["firefox"].read_text("utf-8"))
    checks.equal(f"{case.name} firefox: version", profile["meta"]["preprocessedProfileVersion"], 55)
    (thread,) = profile["threads"]
    for name in ["frameTable", "funcTable", "stackTable", "nativeAllocations", "markers", "samples"]:
        table = thread[name]
        lengths = {key: len(column) for key, column in table.items() if isinstance(column, list)}
        checks.equal(f"{case.name} firefox: {name}", set(lengths.values()), {table["length"]})

    def within(column, length):
        return all(at is None or 0 <= at < length for at in column)

    strings, frames, stacks = thread["stringArray"], thread["frameTable"], thread["stackTable"]
    checks.true(f"{case.name} firefox: functions", within(thread["funcTable"]["name"], len(strings)))
    checks.true(f"{case.name} firefox: files", within(thread["funcTable"]["fileName"], len(strings)))
    checks.true(f"{case.name} firefox: frames", within(frames["func"], thread["funcTable"]["length"]))
    checks.true(f"{case.name} firefox: stack frames", within(stacks["frame"], frames["length"]))
    rising = all(prefix is None or prefix < at for at, prefix in enumerate(stacks["prefix"]))
    checks.true(f"{case.name} firefox: callers come first", rising)
    allocations = thread["nativeAllocations"]
    checks.true(f"{case.name} firefox: stacks", within(allocations["stack"], stacks["length"]))
    checks.true(f"{case.name} firefox: order", sorted(allocations["time"]) == allocations["time"])
    retained = {}
    for address, weight in zip(allocations["memoryAddress"], allocations["weight"]):
        if weight > 0:
            retained[address] = weight
        else:
            checks.equal(f"{case.name} firefox: a free", retained.pop(address, None), -weight)
    if max(case.peak, 1) <= SIGNED:
        checks.equal(f"{case.name} firefox: retained at the peak", sum(retained.values()), case.peak)
        for counter, peak in [("allocated", case.peak), ("reserved", case.report["peaks"]["reserved_bytes"])]:
            samples = next(entry["samples"] for entry in profile["counters"] if entry["name"] == counter)
            value = most = 0
            for change in samples["count"]:
                value += change
                most = max(most, value)
            checks.equal(f"{case.name} firefox: {counter}", most, peak)
            checks.true(f"{case.name} firefox: time of {counter}", all(delta >= 0 for delta in samples["timeDeltas"]))


def unknown_fields(message):
    """The fields that the published messages do not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [(message.DESCRIPTOR.name, field.field_number) for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            repeated = not hasattr(value, "DESCRIPTOR")
            for part in value if repeated else [value]:
                found += unknown_fields(part)
    return found


def check_published_perfetto(checks, case):
    if case.files["perfetto"].stat().st_size > 2_000_000:
        # The same messages again, and slow.
        return
    trace = Trace()
    trace.ParseFromString(case.files["perfetto"].read_bytes())
    checks.true(f"{case.name} perfetto: packets", len(trace.packet) > 0)
    checks.equal(f"{case.name} perfetto: fields that are not published", unknown_fields(trace)[:3], [])


def check_trace(checks, case, format, figures):
    name = f"{case.name} {format}"
    checks.equal(f"{name}: errors of the trace processor", figures["errors"], [])
    checks.equal(f"{name}: slices that overlap or nest", figures["wrong"][0]["count"], "0")
    suffix = "" if format == "perfetto" else " bytes"
    counters = {counter["name"]: counter for counter in figures["counters"]}
    allocated, reserved = counters["allocated" + suffix], counters["reserved" + suffix]
    if format == "perfetto":
        checks.equal(f"{name}: units", {counter["unit"] for counter in figures["counters"]}, {"bytes"})
    instants = [instant["name"] for instant in figures["instants"]]
    moments = {"peak of allocated memory", "peak of reserved memory", "end"}
    moments |= {"out of memory"} if case.report["oom"] else set()
    checks.true(f"{name}: moments", moments <= set(instants), instants[:9])
    checks.equal(f"{name}: steps", sum(part.startswith("step ") for part in instants), case.report["steps"]["count"])
    # Rows by their numbers: a slice is the block that it says.
    rows = {row["id"]: row for row in case.rows}
    sizes = [(block["size_bytes"], rows[block["id"]]["size_bytes"]) for block in figures["blocks"]]
    if case.peak <= JAVASCRIPT:
        checks.true(f"{name}: blocks", all(str(found) == expected for found, expected in sizes))
        checks.equal(f"{name}: peak", allocated["at_peak"], case.peak)
        checks.equal(f"{name}: most allocated", allocated["most"], case.peak)
        checks.equal(f"{name}: most reserved", reserved["most"], case.report["peaks"]["reserved_bytes"])
        classes = [counter for counter in figures["counters"] if counter not in (allocated, reserved)]
        checks.equal(f"{name}: classes add up", sum(counter["at_peak"] for counter in classes), case.peak)
    checks.true(f"{name}: blocks have stacks", all(block["stack"] for block in figures["blocks"]))
    checks.true(f"{name}: there are blocks", len(figures["blocks"]) > 0 or not case.rows)


def check_pprof(checks, case, figures):
    name = f"{case.name} pprof"
    sums = {key: int(value) for key, value in figures["sums"].items()}
    checks.equal(f"{name}: what its library writes again", figures["again"], figures["bytes"])
    checks.equal(f"{name}: default", figures["default"], "inuse_space")
    if case.peak <= SIGNED:
        checks.equal(f"{name}: peak", sums["inuse_space bytes"], case.peak)
        checks.equal(f"{name}: peak by name", sums["peak_space bytes"], case.peak)
        checks.equal(f"{name}: end", sums["end_space bytes"], case.end)
    checks.equal(f"{name}: allocations", sums["alloc_objects count"], len(case.rows))
    checks.equal(f"{name}: blocks", sums["inuse_objects count"], sum(case.held(row) for row in case.rows))


def main():
    program, recordings, examples, out = (Path(argument).absolute() for argument in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    paths = sorted([*(recordings / "models").glob("*.gz"), *(recordings / "edge").glob("*.gz"), *examples.glob("*.gz")])
    paths = [path for path in paths if path.name not in LIKE_OTHERS]
    found = len(paths)
    paths += hostile(out)
    checks = Checks()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        cases = list(pool.map(lambda path: Case(program, path, None, out), paths))
        others = [(case.path, device) for case in cases if case.report["source"]["devices"] > 1 for device in (0, 1)]
        cases += pool.map(lambda other: Case(program, *other, out), others)
        # The tools of Node run beside those of Python, in several processes.
        opened = [(case, format) for case in cases for format in ("perfetto", "chrome", "pprof")]
        parts = [opened[at :: os.cpu_count()] for at in range(os.cpu_count())]
        reads = [pool.submit(read, part, out / f"read-{at}.json") for at, part in enumerate(parts)]
        for case in cases:
            check_tables(checks, case)
            check_folded(checks, case)
            check_speedscope(checks, case)
            check_firefox(checks, case)
            check_published_perfetto(checks, case)
        for part, figures in zip(parts, (task.result() for task in reads)):
            for (case, format), figure in zip(part, figures):
                if format == "pprof":
                    check_pprof(checks, case, figure)
                else:
                    check_trace(checks, case, format, figure)
    checks.true("recordings are there", found >= 15, f"({found})")
    sizes = {format: sum(case.files[format].stat().st_size for case in cases) for format in SUFFIXES}
    print(f"{len(cases)} devices of {len(paths)} recordings, bytes written: {sizes}")
    print(f"pyarrow {pyarrow.__version__}, DuckDB {duckdb.__version__}")
    print(f"Exports: {checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def read(part, answer):
    files = [case.files[format] for case, format in part]
    subprocess.run(["node", HERE / "read.mjs", answer, *files], check=True)
    return json.loads(answer.read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
