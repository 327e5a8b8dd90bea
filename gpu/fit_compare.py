"""Holds `gpuheap fit` against what was measured: traces each run of the truth, predicts it, and prints the errors.

    PYTHONPATH=python python gpu/fit_compare.py TRUTH.jsonl --gpuheap target/release/gpuheap --traces FOLDER \\
        [--json OUT.json] [--markdown OUT.md] [--only resnet50,gpt2] [--again]

No GPU is needed. Traces are kept in the folder and used again, unless `--again` is given. A run is what
`gpu/fit_truth.py` measured: a model of the zoo at a batch and a setting. MemTracker's and accelerate's predictions for
the same runs are in the same file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fit_table import report

CHUNK = 12
"""Runs that one tracing process does: a process of its own for each would spend its time importing PyTorch."""
TRACE_S = 120.0
Row = dict[str, Any]


def key_of(row: Row) -> str:
    return f"{row['model']}:{row['batch']}:{row['setting']}"


def read_truth(path: Path) -> tuple[dict[str, Row], dict[str, Row], dict[str, Any], list[Row]]:
    """Measured runs, MemTracker's predictions, both by run; what is said of the machine; runs in fresh processes."""
    truth: dict[str, Row] = {}
    trackers: dict[str, Row] = {}
    fresh: list[Row] = []
    about: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "about":
            about = about or row
        elif row["kind"] == "memtracker":
            trackers[key_of(row)] = row
        elif row["kind"] == "truth" and "error" not in row:
            if row["how"] == "fresh process":
                fresh.append(row)
            if row["setting"] == "autocast_fp16" and "later" in row:
                # GradScaler leaves out its first steps, until its scale fits: the optimizer's state comes later.
                row["peak_allocated"] = max(row["peak_allocated"], row["later"]["peak_allocated"])
                row["peak_reserved"] = max(row["peak_reserved"], row["later"]["reserved"])
            if row["how"] == "in process" or key_of(row) not in truth:
                truth[key_of(row)] = row
    return truth, trackers, about, fresh


CONF_ONLY = ("expandable",)
"""Settings of the allocator alone: the program is that of the plain run."""


def trace_path(folder: Path, key: str) -> Path:
    model, size, setting = key.split(":")
    return folder / f"{model}__{size}__{'none' if setting in CONF_ONLY else setting}.json"


def trace_worker(folder: Path, keys: list[str]) -> None:
    """Traces the runs one after the other; an error goes beside where the trace would be."""
    import zoo
    from fit_device import limit, reason
    from gpuheap._fit.trace import trace

    for key in keys:
        model, size, setting = key.split(":")
        path = trace_path(folder, key)
        failed = path.with_suffix(".error")
        failed.unlink(missing_ok=True)
        begun = time.monotonic()
        try:
            with limit(TRACE_S):
                make = zoo.make_for(model, int(size), setting, place=zoo.to_device)
                found = trace(make, source=f"zoo.py:{key}")
            found["source"]["seconds"] = round(time.monotonic() - begun, 2)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")
            part.replace(path)
        except Exception as error:  # a program that cannot be traced is a result
            failed.write_text(reason(error), encoding="utf-8")


def trace_all(folder: Path, keys: list[str], again: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    by_path = {trace_path(folder, key): key for key in keys}
    left = [key for path, key in by_path.items() if again or not path.exists()]
    for begin in range(0, len(left), CHUNK):
        chunk = left[begin : begin + CHUNK]
        print(f"tracing {begin + len(chunk)} of {len(left)}", file=sys.stderr, flush=True)
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(folder), *chunk]
        subprocess.run(command, env=os.environ, check=False, stderr=subprocess.DEVNULL)


LEVERS = {
    "checkpoint": "checkpoint=all",
    "foreach_off": "optimizer=for_loop",
    "fused": "optimizer=fused",
    "accumulate4": "accumulate=4",
    "expandable": None,
}
"""Settings that the planner predicts from a plain trace, with what turns each on there."""


def as_measured(path: Path, folder: Path) -> Path:
    """A copy of a trace with what `fit_truth.py` has on the GPU beside the program (`fit_early.py` says what)."""
    from fit_early import with_early_batch

    model, size, setting = path.stem.split("__", 2)
    found = with_early_batch(json.loads(path.read_text(encoding="utf-8")), model, int(size), setting)
    copy = folder / path.name
    copy.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")
    return copy


def predicted(gpuheap: str, path: Path, conf: str, device: str) -> Row:
    """From a trace of the very program that ran."""
    with tempfile.TemporaryDirectory() as folder:
        return told(gpuheap, ["--trace", str(as_measured(path, Path(folder)))], conf, device, "baseline")


def planned(gpuheap: str, folder: Path, real: Row, device: str) -> Row | None:
    """From plain traces alone, as a plan is: other batches from two sizes, settings as the planner's levers."""
    with tempfile.TemporaryDirectory() as copies:
        return planned_from(gpuheap, folder, Path(copies), real, device)


def planned_from(gpuheap: str, folder: Path, copies: Path, real: Row, device: str) -> Row | None:
    import zoo

    name, size, setting = real["model"], real["batch"], real["setting"]
    batches = sorted(zoo.MODELS[name].batches)
    plain = [trace_path(folder, f"{name}:{one}:none") for one in batches[:2]]
    plain = [as_measured(path, copies) if path.exists() else path for path in plain]
    if setting == "none":
        if size != batches[-1] or not all(path.exists() for path in plain):
            return None
        options = [option for path in plain for option in ("--trace", str(path))]
        return told(gpuheap, [*options, "--batch", str(size)], "", device, "peak")
    if setting not in LEVERS or not plain[1].exists() or size != batches[1]:
        return None
    options = ["--trace", str(plain[1])]
    if setting == "accumulate4":
        if not plain[0].exists():
            return None
        options += ["--trace", str(plain[0]), "--batch", str(size)]
    lever = LEVERS[setting]
    return told(gpuheap, [*options, *(["--set", lever] if lever else [])], real["conf"], device, "peak")


def told(gpuheap: str, options: list[str], conf: str, device: str, figure: str) -> Row:
    """What the command says with all levers off but those given; `figure` is the plan's field to take."""
    command = [gpuheap, "fit", *options, "--without", "all", "--device", device, "--json"]
    if conf:
        command += ["--conf", conf]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        plan = json.loads(done.stdout)
    except ValueError:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[0]}
    peak = plan[figure]
    return {
        "allocated": peak["allocated_bytes"],
        "reserved": peak["reserved_bytes"],
        "device": peak["device_bytes"],
        "high": peak["high"],
        "low": peak["low"],
        "phase": peak["phase"],
        "module": peak.get("module"),
        "step_us": peak.get("step_us") or plan.get("step_us"),
        # The bar of the context is left out again where reserved bytes are compared.
        "context": plan.get("context_most_bytes", plan.get("context_bytes")),
    }


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        trace_worker(Path(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--gpuheap", default="gpuheap", help="the command")
    parser.add_argument("--traces", type=Path, default=Path("traces"))
    parser.add_argument("--device", default="H200", help="what the truth was measured on")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--setting", default="", help="settings, separated by commas")
    parser.add_argument("--again", action="store_true", help="trace anew")
    parser.add_argument("--no-trace", action="store_true", help="only runs that have a trace")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    import zoo

    truth, trackers, about, fresh = read_truth(arguments.truth)
    for row in truth.values():
        # As the zoo has it now: a model that something is learnt from later no longer validates.
        row["calibration"] = row["model"] in zoo.CALIBRATION
        row["examined"] = row["model"] in zoo.EXAMINED
    if arguments.only:
        truth = {key: row for key, row in truth.items() if row["model"] in arguments.only.split(",")}
    if arguments.setting:
        truth = {key: row for key, row in truth.items() if row["setting"] in arguments.setting.split(",")}
    if not arguments.no_trace:
        trace_all(arguments.traces, list(truth), arguments.again)
    rows: list[Row] = []
    for key, real in truth.items():
        path = trace_path(arguments.traces, key)
        if path.exists():
            ours = predicted(arguments.gpuheap, path, real["conf"], arguments.device)
        elif arguments.no_trace and not path.with_suffix(".error").exists():
            continue
        else:
            failed = path.with_suffix(".error")
            ours = {"error": failed.read_text(encoding="utf-8") if failed.exists() else "the tracing process ended"}
        # It knows no allocator: what it says of a plain run holds for one under other settings of it.
        plain = f"{real['model']}:{real['batch']}:none"
        tracked = trackers.get(plain if real["conf"] and real["setting"] == "expandable" else key)
        from_plain = planned(arguments.gpuheap, arguments.traces, real, arguments.device)
        rows.append({"run": key, "real": real, "ours": ours, "planned": from_plain, "memtracker": tracked})
    text = report(rows, about, fresh)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
