"""Predicted step times against measured ones, in tables. No GPU is needed.

    PYTHONPATH=python python gpu/fit_step_times.py TRUTH.jsonl --traces FOLDER --gpuheap target/release/gpuheap \\
        [--plans PLANS.jsonl] [--applied FOLDER] [--markdown OUT.md]

The truth is what `gpu/fit_truth.py` measured, traces are those of `gpu/fit_compare.py`, plans what `gpu/fit_plans.py`
measured. Runs that had the machine to themselves are apart from those that other processes ran beside: the latter took
up to a fifth longer than the same model at half the batch lets expect. With `--applied`, plans are also traced as
they run (the traces are kept in that folder), which is what `gpuheap fit` does before it believes one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fit_compare import key_of, read_truth, trace_path

Row = dict[str, Any]
BAR = 0.15
GROUPS = (
    ("Models that rules were learnt from, alone on the device", True, True),
    ("Other models, alone on the device", True, False),
    ("Models that rules were learnt from, beside other processes", False, True),
    ("Other models, beside other processes", False, False),
)


def step_us(gpuheap: str, options: list[str], figure: str = "baseline") -> float | None:
    """What the command says a step takes."""
    done = subprocess.run(
        [gpuheap, "fit", *options, "--without", "all", "--json"],
        capture_output=True,
        text=True,
        check=False,
        # Not what was found out about this machine's own device.
        env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"},
    )
    try:
        plan = json.loads(done.stdout)
    except ValueError:
        print(f"{options}: {(done.stderr.strip().splitlines() or ['no message'])[0]}", file=sys.stderr)
        return None
    found = plan["step_us"] if figure == "plan" else plan["baseline"]["step_us"]
    return float(found)


def row_of(errors: list[float]) -> str:
    """Median, 90th percentile, bias, how many keep to the bar."""
    sizes = sorted(map(abs, errors))
    high = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    within = sum(size <= BAR for size in sizes)
    middle, bias = statistics.median(sizes), statistics.median(errors)
    return f"{len(sizes)} | {middle:.1%} | {high:.1%} | {bias:+.1%} | {within} of {len(sizes)}"


def zoo_tables(gpuheap: str, truth: dict[str, Row], folder: Path, device: str) -> list[str]:
    """Errors by group and by model."""
    import zoo

    groups: dict[tuple[bool, bool], list[float]] = {}
    models: dict[str, list[tuple[float, Row]]] = {}
    for key, real in truth.items():
        path = trace_path(folder, key)
        if not real.get("step_us") or not path.exists():
            continue
        found = step_us(gpuheap, ["--trace", str(path), "--device", device])
        if found is None:
            continue
        error = found / real["step_us"] - 1
        groups.setdefault((bool(real["alone"]), real["model"] in zoo.CALIBRATION), []).append(error)
        models.setdefault(real["model"], []).append((error, real))
    lines = ["| runs | | median | 90 % | bias | within 15 % |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {title} | {row_of(groups[alone, learnt])} |" for title, alone, learnt in GROUPS if (alone, learnt) in groups
    ]
    lines += ["", "| model | alone: batch | real | error | all runs: median |", "| --- | --- | --- | --- | --- |"]
    for name, runs in sorted(models.items()):
        alone = next(((error, real) for error, real in runs if real["alone"]), None)
        middle = statistics.median(abs(error) for error, _ in runs)
        shown = f"{alone[1]['batch']} | {alone[1]['step_us'] / 1e3:.1f} ms | {alone[0]:+.1%}" if alone else "| |"
        lines.append(f"| {name}{' (learnt from)' if name in zoo.CALIBRATION else ''} | {shown} | {middle:.1%} |")
    return lines


def plan_rows(gpuheap: str, plans: Path, folder: Path, applied: Path | None, device: str) -> list[str]:
    """Plans: by the planner's rules from plain traces, and from a trace with the plan applied."""
    lines = [
        "| model | plan | real | by rules | error | traced with it | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in plans.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        real = (row.get("real") or {}).get("step_us")
        if not real:
            continue
        rules, traced = by_rules(gpuheap, row, folder, device), None
        if applied is not None and row["levers"]:
            path = applied_trace(row, applied)
            traced = step_us(gpuheap, ["--trace", str(path), "--device", device]) if path is not None else None
        cells = [f"{us / 1e3:.1f} ms | {us / real - 1:+.1%}" if us else " | " for us in (rules, traced)]
        lines.append(f"| {row['model']} {row['batch']} | {row['name']} | {real / 1e3:.1f} ms | {' | '.join(cells)} |")
    return lines


def by_rules(gpuheap: str, row: Row, folder: Path, device: str) -> float | None:
    """Levers that only a trace tells about are none for rules."""
    if any(lever["lever"] in ("autocast", "parameters", "compile") for lever in row["levers"]):
        return None
    import zoo

    batch = row["batch"]
    sizes = sorted(size for size in zoo.MODELS[row["model"]].batches if size <= batch)[-2:]
    parts = any(lever["lever"] == "accumulate" for lever in row["levers"])
    traces = [trace_path(folder, f"{row['model']}:{size}:none") for size in (sizes if parts else [batch])]
    if not all(path.exists() for path in traces):
        return None
    options = [option for path in traces for option in ("--trace", str(path))]
    for lever in row["levers"]:
        options += ["--set", json.dumps(lever)]
    if parts:
        options += ["--batch", str(batch)]
    return step_us(gpuheap, [*options, "--device", device], "plan" if row["levers"] else "baseline")


def applied_trace(row: Row, folder: Path) -> Path | None:
    """The trace of a plan as it runs; made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = "".join(one if one.isalnum() else "_" for one in row["name"])
    path = folder / f"{row['model']}__{row['batch']}__{plain}.json"
    if not path.exists():
        levers = path.with_suffix(".levers")
        levers.write_text(json.dumps(row["levers"]), encoding="utf-8")
        make = f"{Path(__file__).parent / 'zoo.py'}:{row['model']}__b{row['batch']}"
        line = [sys.executable, "-W", "ignore", "-m", "gpuheap._fit", "trace", make, "--apply", str(levers)]
        subprocess.run([*line, "--out", str(path)], check=False, stderr=subprocess.DEVNULL)
    return path if path.exists() else None


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--traces", type=Path, default=Path("traces"))
    parser.add_argument("--gpuheap", default="gpuheap", help="the command")
    parser.add_argument("--device", default="H200", help="what the truth was measured on")
    parser.add_argument("--plans", type=Path, help="what `gpu/fit_plans.py run` wrote")
    parser.add_argument("--applied", type=Path, metavar="FOLDER", help="trace plans as they run, and keep that here")
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    truth, *_ = read_truth(arguments.truth)
    truth = {key_of(real): real for real in truth.values()}
    lines = zoo_tables(arguments.gpuheap, truth, arguments.traces, arguments.device)
    if arguments.plans:
        rows = plan_rows(arguments.gpuheap, arguments.plans, arguments.traces, arguments.applied, arguments.device)
        lines += ["", *rows]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
