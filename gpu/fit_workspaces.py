"""What CUDA kernels take beside their results, operator by operator, and how fast they are: constants come from it.

    PYTHONPATH=python python gpu/fit_workspaces.py OUT_FOLDER [--minutes 2] [--only models,cases,...]

Parts, in this order: `context` (bytes by NVML as libraries load), `models` (every operator of two steps of the zoo's
models: its allocations, freed inside or not; the calibration models at three batches and more settings), `roofline`
(products, copies, attention, convolutions), `cases` (single operators over sizes, precisions, layouts), `snapshots`
(PyTorch's own memory history of the calibration models, to compare a trace with). Leaves ops.jsonl.gz, events.jsonl.gz
and snapshots.zip in the folder. Without a GPU, ZOO_DEVICE=cpu tries it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import zoo
from fit_cases import cases, odd_convolutions, recurrent
from fit_device import Clock, Gpu, clear_workspaces, device, limit, reason
from fit_recorder import Recorder, unique
from fit_roofline import roofline
from fit_truth import Run, name_of, program_on

PARTS = ("context", "models", "odd", "recurrent", "roofline", "cases", "snapshots")
SHARES = {
    "context": 0.1,
    "models": 0.5,
    "odd": 0.6,
    "recurrent": 0.62,
    "roofline": 0.65,
    "cases": 0.9,
    "snapshots": 1.0,
}
"""The part of the time by whose end each part is over."""
UNSEEN = ("lstm", "gru")
"""Under a dispatch mode their steps take minutes; their snapshots say what they take."""
CALIBRATION_SETTINGS = (
    "none",
    "autocast_bf16",
    "autocast_fp16",
    "foreach_off",
    "params_bf16",
    "checkpoint",
    "fused",
    "sgd",
)
FILE_LIMIT = 15 << 20
SNAPSHOT_ENTRIES = 200_000


class Out:
    """Gzipped JSON lines, flushed after each block so that a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.file = gzip.open(path, "at", encoding="utf-8", compresslevel=6)  # noqa: SIM115

    def put(self, **row: Any) -> None:
        self.file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")
        self.file.flush()


def nvml_used() -> int | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:  # no NVML: no figure
        return None


def context(out: Out, gpu: Gpu) -> None:
    """The device's use as each library comes in; nothing else may run on the device."""
    stages: list[tuple[str, int | None, int]] = [("before CUDA", nvml_used(), 0)]

    def stage(name: str, work: Callable[[], Any]) -> None:
        work()
        gpu.synchronize()
        stages.append((name, nvml_used(), gpu.reserved()))

    name = gpu.name
    stage("context", lambda: torch.empty(1, device=name))
    stage("elementwise", lambda: torch.ones(16, device=name) + 1)
    stage("cublas fp32", lambda: torch.ones(64, 64, device=name) @ torch.ones(64, 64, device=name))
    half = {"device": name, "dtype": torch.bfloat16}
    stage("cublas bf16", lambda: torch.ones(64, 64, **half) @ torch.ones(64, 64, **half))
    stage("cudnn", lambda: torch.nn.Conv2d(4, 4, 3).to(name)(torch.ones(1, 4, 8, 8, device=name)).sum().backward())
    out.put(kind="context", stages=stages, **gpu.about())


def calibration_first() -> list[Run]:
    """The calibration models at every batch and at more settings, then every other model once."""
    runs: list[Run] = []
    for name in zoo.CALIBRATION:
        runs += [(name, size, "none") for size in zoo.MODELS[name].batches]
    for name in zoo.MODELS:
        if name not in zoo.CALIBRATION:
            runs.append((name, zoo.MODELS[name].batches[1], "none"))
    for setting in CALIBRATION_SETTINGS[1:]:
        for name in zoo.CALIBRATION:
            if setting in zoo.settings_of(name):
                runs.append((name, zoo.MODELS[name].batches[1], setting))
    for name in zoo.MODELS:
        if name not in zoo.CALIBRATION and "autocast_bf16" in zoo.settings_of(name):
            runs.append((name, zoo.MODELS[name].batches[1], "autocast_bf16"))
    return runs


def one_model(out: Out, events: Out, gpu: Gpu, run: Run) -> None:
    gpu.fresh()
    program = program_on(gpu, run)
    # What the libraries took to bring the model here is not the program's.
    recorder = Recorder(gpu.name)
    with recorder:
        for _ in range(2):
            zoo.run_step(program)
    happened = recorder.finish()
    with Recorder(gpu.name, timed=True) as clock:
        zoo.run_step(program)
    torch.cuda.memory._record_memory_history(None) if gpu.name == "cuda" else None
    times = clock.times_us()
    tail = recorder.ops[len(recorder.ops) - len(times) :]
    for op, spent in zip(tail, times, strict=False):
        op["us"] = spent
    name, size, setting = run
    common = {"model": name, "batch": size, "setting": setting, "calibration": zoo.MODELS[name].calibration}
    found = unique(recorder.ops)
    out.put(kind="model", **common, ops=len(recorder.ops), unique=len(found), outside=recorder.outside[:2000])
    for op in found:
        out.put(kind="op", **common, **op)
    if zoo.MODELS[name].calibration or setting == "none":
        names = sorted({op["op"] for op in recorder.ops})
        index = {one: i for i, one in enumerate(names)}
        events.put(**common, names=names, ops=[index[op["op"]] for op in recorder.ops], events=happened)


def models(out: Out, events: Out, gpu: Gpu, clock: Clock, only: list[str] | None) -> None:
    runs = [run for run in calibration_first() if run[0] not in UNSEEN and (only is None or run[0] in only)]
    for number, run in enumerate(runs):
        if clock.left() < 2:
            out.put(kind="note", left_out=[name_of(one) for one in runs[number:]])
            return
        begun = time.monotonic()
        try:
            with limit(min(25.0, clock.left())):
                one_model(out, events, gpu, run)
        except Exception as error:  # every run stands for itself
            out.put(kind="model", run=name_of(run), error=reason(error))
            print(f"{name_of(run)}: {reason(error)}", file=sys.stderr, flush=True)
        out.put(kind="time", run=name_of(run), seconds=round(time.monotonic() - begun, 2))


def single(out: Out, gpu: Gpu, clock: Clock, small: bool, made: Callable[..., Any]) -> None:
    """Each case once after the handles' workspaces were given back, once as it is."""
    done = 0
    for label, work in made(gpu.name, (4,) if small else (4, 16, 64)):
        if clock.left() < 1:
            out.put(kind="note", cases_done=done)
            return
        if small and gpu.name == "cpu" and done % 9:
            done += 1
            continue
        try:
            with limit(10.0):
                for turn in ("first", "again"):
                    if turn == "first" and gpu.name == "cuda":
                        clear_workspaces()
                    recorder = Recorder(gpu.name)
                    with recorder:
                        work()
                    recorder.finish()
                    ops = [op for op in unique(recorder.ops) if telling(op)]
                    out.put(kind="case", case=label, turn=turn, ops=ops)
        except Exception as error:  # a kernel that this device or build lacks
            out.put(kind="case", case=label, error=reason(error))
        done += 1
    out.put(kind="note", cases_done=done)


def whole(out: Out, gpu: Gpu, clock: Clock) -> None:
    """Recurrent layers: all that each program takes, in order, as a dispatch mode would keep cuDNN from them."""
    for label, work in recurrent(gpu.name):
        if clock.left() < 1:
            return
        if gpu.name == "cpu" and "float32" not in label:
            # PyTorch 2.11 on the processor: RNNs of short floats can end the process.
            continue
        try:
            with limit(10.0):
                work()
                taken: list[list[Any]] = []
                if gpu.name == "cuda":
                    torch.cuda.memory._record_memory_history(None)
                    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=10_000)
                    work()
                    gpu.synchronize()
                    history = torch.cuda.memory._snapshot()["device_traces"][0]
                    torch.cuda.memory._record_memory_history(None)
                    taken = [
                        [one["action"][0], one["size"], one["addr"]] for one in history if "free_r" not in one["action"]
                    ]
                out.put(kind="recurrent", case=label, events=taken)
        except Exception as error:  # a kernel that this device or build lacks
            out.put(kind="recurrent", case=label, error=reason(error))


def telling(op: dict[str, Any]) -> bool:
    """Whether an operator took anything that its results do not explain."""
    kept = sorted(size for size, freed in op["allocs"] if not freed)
    return any(freed for _, freed in op["allocs"]) or kept != sorted(op["out_bytes"]) or not op["allocs"]


def snapshots(folder: Path, gpu: Gpu, clock: Clock, only: list[str] | None) -> None:
    """Two plain steps of each calibration model, with Python stacks, as `gpuheap explain` reads them."""
    if gpu.name != "cuda":
        return
    settings = [(name, "none") for name in zoo.CALIBRATION] + [
        ("bert_base", "autocast_bf16"),
        ("resnet50", "autocast_bf16"),
    ]
    with zipfile.ZipFile(folder / "snapshots.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        size = 0
        for name, setting in settings:
            if clock.left() < 2 or (only is not None and name not in only):
                continue
            run = (name, zoo.MODELS[name].batches[1], setting)
            try:
                with limit(20.0):
                    gpu.fresh()
                    torch.cuda.memory._record_memory_history(None)
                    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=SNAPSHOT_ENTRIES)
                    program = program_on(gpu, run)
                    for _ in range(2):
                        zoo.run_step(program)
                    gpu.synchronize()
                    packed = io.BytesIO()
                    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6) as file:
                        pickle.dump(torch.cuda.memory._snapshot(), file, protocol=4)
                    torch.cuda.memory._record_memory_history(None)
                    del program
            except Exception as error:  # every run stands for itself
                print(f"snapshot of {name_of(run)}: {reason(error)}", file=sys.stderr)
                continue
            if size + packed.tell() < FILE_LIMIT:
                size += packed.tell()
                archive.writestr(f"{name}_b{run[1]}_{setting}.pickle.gz", packed.getvalue(), zipfile.ZIP_STORED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--models", default="", help="models, separated by commas")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpu = device()
    out = Out(arguments.out / "ops.jsonl.gz")
    events = Out(arguments.out / "events.jsonl.gz")
    only = arguments.models.split(",") if arguments.models else None
    parts = arguments.only.split(",")
    begun = time.monotonic()
    for part in PARTS:
        if part not in parts:
            continue
        share = SHARES[part] if arguments.only == ",".join(PARTS) else 1.0
        clock = Clock(arguments.minutes * share - (time.monotonic() - begun) / 60)
        try:
            if part == "context":
                context(out, gpu)
            elif part == "models":
                models(out, events, gpu, clock, only)
            elif part == "recurrent":
                whole(out, gpu, clock)
            elif part == "roofline":
                roofline(out.put, gpu, clock)
            elif part in ("cases", "odd"):
                single(out, gpu, clock, arguments.small, cases if part == "cases" else odd_convolutions)
            else:
                snapshots(arguments.out, gpu, clock, only)
        except Exception as error:  # one part's failure is not the others'
            out.put(kind="note", part=part, error=reason(error))
            print(f"{part}: {reason(error)}", file=sys.stderr)
        print(f"{part}: done after {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
