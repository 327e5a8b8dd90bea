"""What the allocator was asked for in two steps of the zoo's models, in order: where a trace's sequence parts from it.

    PYTHONPATH=python python gpu/fit_sequences.py OUT_FOLDER RUN [RUN ...] [--minutes 1] [--parts plain,operators]

A run is MODEL:BATCH:SETTING. Each is recorded in two ways, from an empty cache on, with its model, batch and optimizer:

- `plain`: PyTorch's memory history of the program as it is;
- `operators`: the same under a dispatch mode that names the operator of each allocation (`fit_recorder.py` says how).
  Recurrent layers are left out: under such a mode they do not go to cuDNN.

Leaves sequences.jsonl.gz, a line for each of them. Addresses are kept, so that it can be told which block was split and
what was left of it. Without a GPU, ZOO_DEVICE=cpu tries it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import zoo
from fit_device import Clock, Gpu, device, limit, reason
from fit_recorder import HISTORY, Recorder
from fit_truth import Run, name_of, program_on, run_of, warm_up

PARTS = ("plain", "operators")
UNSEEN = ("lstm", "gru")
"""Under a dispatch mode their layers are taken apart, step by step."""
MARK = 7
"""Bytes of a marker between phases; nothing asks for so many."""
RUN_S = 20.0
ACTIONS = {
    "alloc": "a",
    "free_requested": "q",
    "free_completed": "f",
    "segment_alloc": "s",
    "segment_map": "s",
    "segment_free": "r",
    "segment_unmap": "r",
}


def marked(gpu: Gpu) -> None:
    if gpu.name == "cuda":
        torch.empty(MARK, dtype=torch.uint8, device="cuda")


def steps(gpu: Gpu, program: Any) -> list[str]:
    """Two steps, with a marker after each phase; the phases in the order of their markers."""
    ended: list[str] = []

    def mark(phase: str) -> None:
        marked(gpu)
        ended.append(phase)

    for number in (1, 2):
        zoo.run_step(program, mark)
        ended[-1] += f" {number}"
    gpu.synchronize()
    return ended


def plain(gpu: Gpu, run: Run) -> dict[str, Any]:
    gpu.fresh()
    if gpu.name == "cuda":
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=HISTORY)
    program = program_on(gpu, run)
    marked(gpu)
    ended = ["setup", *steps(gpu, program)]
    events: list[list[Any]] = []
    if gpu.name == "cuda":
        history = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        events = [[ACTIONS.get(one["action"], one["action"]), one["size"], one["addr"]] for one in history]
    return {"phases": ended, "events": events, "peaks": gpu.peaks()}


def operators(gpu: Gpu, run: Run) -> dict[str, Any]:
    gpu.fresh()
    with Recorder(gpu.name) as recorder:
        program = program_on(gpu, run)
        marked(gpu)
        for _ in range(2):
            zoo.run_step(program)
    events = recorder.finish()
    names = sorted({op["op"] for op in recorder.ops})
    index = {one: number for number, one in enumerate(names)}
    ops = [[index[op["op"]], op["in"], op["out_bytes"], op["allocs"]] for op in recorder.ops]
    return {"names": names, "ops": ops, "events": events, "peaks": gpu.peaks()}


RECORDERS: dict[str, Callable[[Gpu, Run], dict[str, Any]]] = {"plain": plain, "operators": operators}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    clock, gpu = Clock(arguments.minutes), device()
    parts = arguments.parts.split(",")
    failures = 0
    warm_up(gpu)
    with gzip.open(arguments.out / "sequences.jsonl.gz", "at", encoding="utf-8", compresslevel=6) as file:
        for run in map(run_of, arguments.runs):
            for part in parts:
                if clock.left() < 2 or (part == "operators" and run[0] in UNSEEN):
                    continue
                begun = time.monotonic()
                try:
                    with limit(min(RUN_S, clock.left())):
                        row = RECORDERS[part](gpu, run)
                except Exception as error:  # every run stands for itself
                    row = {"error": reason(error)}
                    failures += 1
                    print(f"{name_of(run)} {part}: {row['error']}", file=sys.stderr, flush=True)
                row = {"run": name_of(run), "part": part, "seconds": round(time.monotonic() - begun, 2), **row}
                file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")
                file.flush()
    print(f"{arguments.out}: {60 * arguments.minutes - clock.left():.0f} s, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
