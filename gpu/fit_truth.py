"""What the zoo's models take on a GPU: the truth that `gpuheap fit` is held against, and what other tools predict.

    PYTHONPATH=python python gpu/fit_truth.py OUT.jsonl [--minutes 7] [--only resnet50,gpt2] [--workers 6]

One JSON line a run, written at once: peaks of allocated and reserved memory after the first and the second step, by
phase, the step's time, the workspaces that cuBLAS held, the device's use. Beside it, in processes of their own while no
step is timed: runs under `expandable_segments:True`, runs in a fresh process each (is the figure the same as inside a
long-lived one?), and the predictions of torch's MemTracker. accelerate's estimate is a formula over the parameters.

Without a GPU, `ZOO_DEVICE=cpu ... --only mlp,gan --small` tries everything but the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import zoo
from fit_device import Clock, Gpu, Lines, device, limit, reason, to_device
from zoo_steps import lever

RUN_S = 25.0
"""The most that one run may take."""
TIMED_S = 0.6
"""The most that the timed steps of one run take together."""
FRESH = (
    "resnet50:64:none",
    "bert_base:16:none",
    "gpt2:4:none",
    "unet:16:none",
    "lstm:32:none",
    "convnext_tiny:32:none",
)
"""Runs that are made once more in a process of their own; every run of `OWN_PROCESS` is made so only."""
OWN_PROCESS = ("gru",)
"""Models that leave something behind in the process: cuDNN keeps the state of an RNN's dropout for good."""
ORDER = (
    "autocast_bf16",
    "checkpoint",
    "foreach_off",
    "autocast_fp16",
    "params_bf16",
    "evaluation",
    "fused",
    "accumulate4",
)

Run = tuple[str, int, str]


def name_of(run: Run) -> str:
    return ":".join(map(str, run))


def run_of(name: str) -> Run:
    model, size, setting = name.split(":")
    return model, int(size), setting


def planned(only: list[str] | None = None, *, small: bool = False) -> list[Run]:
    """Every run, the most telling first: each model once, then its other batches, then the settings, one by one."""
    models = [name for name in zoo.MODELS if only is None or name in only]
    runs: list[Run] = []
    for turn in (1, 2, 0):
        for name in models:
            batches = zoo.MODELS[name].batches
            runs += [(name, size, "none") for size in ([batches[turn]] if turn else [batches[0], *batches[3:]])]
    settings = [*ORDER, *(one for one in zoo.SETTINGS if one not in ORDER and one != "none")]
    for setting in settings:
        runs += [(name, zoo.MODELS[name].batches[1], setting) for name in models if setting in zoo.settings_of(name)]
    return [(name, 4, setting) for name, _, setting in runs] if small else runs


def conf_of(run: Run) -> str:
    allocator = lever(zoo.SETTINGS[run[2]], "allocator")
    return str(allocator["conf"]) if allocator else ""


def placed(gpu: Gpu) -> Any:
    """A model's way to the device: filled there, for speed, then moved there from the host, as programs do."""

    def place(model: torch.nn.Module) -> torch.nn.Module:
        if gpu.name == "cpu":
            return model
        model.cpu()
        gpu.fresh()
        return model.to(gpu.name)

    return place


def bytes_of(tensors: Any) -> int:
    """Of the storages behind these tensors, each once."""
    found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def program_on(gpu: Gpu, run: Run) -> Any:
    name, size, setting = run
    torch.manual_seed(0)
    with torch.device(gpu.name):
        model, optimizer, loss, batch = zoo.make_for(name, size, setting, place=placed(gpu))()
    # The batch was made on the device before the model arrived there; it takes its place after the model.
    return model, optimizer, loss, to_device(to_device(batch, "cpu"), gpu.name)


def measured(gpu: Gpu, run: Run, *, timed: bool) -> dict[str, Any]:
    """Two steps as in a new process, then some for their time."""
    row: dict[str, Any] = {"left_before": gpu.fresh(), "used_before": gpu.used()}
    program = program_on(gpu, run)
    model = program[0]
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    row["parameter_bytes"] = bytes_of(model.parameters())
    row["trainable_bytes"] = bytes_of([p for p in model.parameters() if p.requires_grad])
    row["buffer_bytes"] = bytes_of(model.buffers())
    row["loaded"] = {"allocated": gpu.allocated(), "reserved": gpu.reserved()}
    retries = gpu.retries()
    steps: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for _ in range(2):
        gpu.reset()
        phases: dict[str, dict[str, int]] = {}

        def mark(phase: str, phases: dict[str, dict[str, int]] = phases) -> None:
            # The counters are the allocator's, on the host: nothing has to wait for the device.
            phases[phase] = {"end": gpu.allocated(), **gpu.peaks()}
            gpu.reset()

        begun = time.perf_counter()
        zoo.run_step(program, mark)
        gpu.synchronize()
        steps.append(
            {
                "seconds": time.perf_counter() - begun,
                "peak_allocated": max(one["allocated"] for one in phases.values()),
                "peak_requested": max(one["requested"] for one in phases.values()),
                "reserved": gpu.reserved(),
                "peak_reserved": max(one["reserved"] for one in phases.values()),
                "allocated": gpu.allocated(),
                "phases": phases,
            }
        )
    row["steps"] = steps
    row["peak_allocated"] = max(step["peak_allocated"] for step in steps)
    row["peak_reserved"] = max(step["peak_reserved"] for step in steps)
    row["retries"] = gpu.retries() - retries
    row["used"] = gpu.used()
    if timed:
        spent: list[float] = []
        while len(spent) < 5 and (len(spent) < 2 or sum(spent) < TIMED_S):
            begun = time.perf_counter()
            zoo.run_step(program)
            gpu.synchronize()
            spent.append(time.perf_counter() - begun)
        row["step_us"] = round(1e6 * sorted(spent)[len(spent) // 2])
        row["timed_steps"] = len(spent)
        row["later"] = {"peak_allocated": gpu.peaks()["allocated"], "reserved": gpu.reserved()}
    before = gpu.allocated()
    if gpu.name == "cuda":
        from fit_device import clear_workspaces

        clear_workspaces()
    row["blas_workspace_bytes"] = before - gpu.allocated()
    del program, model
    row["left_after"] = gpu.fresh()
    return row


def accelerate_estimate(run: Run, parameter_bytes: int) -> int | None:
    """What `accelerate estimate-memory` says of training with Adam: the weights times four, for mixed precision too."""
    levers = zoo.SETTINGS[run[2]]
    if lever(levers, "evaluation"):
        return parameter_bytes
    return 4 * parameter_bytes


def record(lines: Lines, gpu: Gpu, run: Run, how: str, clock: Clock, *, timed: bool, alone: bool = False) -> None:
    model, size, setting = run
    common: dict[str, Any] = {"kind": "truth", "how": how, "model": model, "batch": size, "setting": setting}
    common["alone"] = alone
    common["calibration"] = zoo.MODELS[model].calibration
    common["conf"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    begun = time.monotonic()
    try:
        with limit(max(1.0, min(RUN_S, clock.left()))):
            row = measured(gpu, run, timed=timed)
        row["accelerate"] = accelerate_estimate(run, row["parameter_bytes"])
    except Exception as error:  # every run stands for itself
        row = {"error": reason(error)}
    lines.put(**common, **row, seconds=round(time.monotonic() - begun, 2))
    if "error" in row:
        print(f"{name_of(run)}: {row['error']}", file=sys.stderr, flush=True)
        gpu.fresh()


def warm_up(gpu: Gpu) -> None:
    """The context, cuBLAS and cuDNN, so that the first run is like the others."""
    layer = torch.nn.Conv2d(8, 8, 3).to(gpu.name)
    layer(torch.randn(2, 8, 16, 16, device=gpu.name)).flatten(1).matmul(
        torch.randn(1568, 8, device=gpu.name)
    ).sum().backward()
    gpu.synchronize()


def mem_tracker(lines: Lines, gpu: Gpu, run: Run, clock: Clock) -> None:
    """torch's own prediction, on fake tensors: the peak of two steps."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    model, size, setting = run
    begun = time.monotonic()
    row: dict[str, Any]
    try:
        with limit(max(1.0, min(RUN_S, clock.left()))), FakeTensorMode(), torch.device(gpu.name):
            with born_as(lever(zoo.SETTINGS[setting], "parameters")):
                program = zoo.make_for(model, size, setting)()
            tracker = MemTracker()
            optimizers = program[1] if isinstance(program[1], tuple) else (program[1],) if program[1] else ()
            inputs = [t for t in torch.utils._pytree.tree_leaves(program[3]) if isinstance(t, torch.Tensor)]
            tracker.track_external(program[0], *optimizers, *inputs)
            with tracker:
                for _ in range(2):
                    zoo.run_step(program)
                    tracker.reset_mod_stats()
            peak = tracker.get_tracker_snapshot("peak")
            row = {"peak_allocated": next(iter(sum_of(peak, gpu.name)), 0)}
    except Exception as error:  # a tool that fails on a model is a result
        row = {"error": reason(error)}
    lines.put(
        kind="memtracker", model=model, batch=size, setting=setting, seconds=round(time.monotonic() - begun, 2), **row
    )


@contextmanager
def born_as(parameters: dict[str, Any] | None) -> Iterator[None]:
    """`model.to(dtype)` fails on fake parameters in PyTorch 2.11: they are made in that precision instead."""
    if parameters is None:
        yield
        return
    move = torch.nn.Module.to
    torch.set_default_dtype(getattr(torch, parameters["dtype"]))
    torch.nn.Module.to = lambda module, *_, **__: module  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.to = move  # type: ignore[method-assign]
        torch.set_default_dtype(torch.float32)


def sum_of(snapshot: dict[Any, dict[str, int]], name: str) -> list[int]:
    return [parts["Total"] for where, parts in snapshot.items() if str(where).startswith(name)]


def start(
    kind: str, out: Path, runs: list[Run], minutes: float, conf: str = "", alone: int = 0
) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    if kind != "timed":
        # Many processes beside each other: each its share of the cores.
        environment["OMP_NUM_THREADS"] = "2"
    command = [sys.executable, "-W", "ignore", __file__, str(out), "--kind", kind, "--minutes", f"{minutes:.3f}"]
    command += ["--alone", str(alone)]
    return subprocess.Popen([*command, "--runs", ",".join(map(name_of, runs))], env=environment)


def part_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


def gather(out: Path, parts: list[Path]) -> None:
    """The lines of the other processes go to the one file."""
    with open(out, "a", encoding="utf-8") as into:
        for part in parts:
            if part.exists():
                into.write(part.read_text(encoding="utf-8"))
                part.unlink()


class Beside:
    """What needs no clock, in processes of their own: MemTracker, other allocator settings, fresh processes."""

    def __init__(self, out: Path, runs: list[Run], clock: Clock, workers: int) -> None:
        self.out, self.runs, self.clock, self.workers = out, runs, clock, workers
        self.folder = Path(tempfile.mkdtemp(prefix="fit_truth"))
        self.running: list[subprocess.Popen[bytes]] = []
        self.parts: list[Path] = []

    def begin(self, kind: str, name: str, runs: list[Run], conf: str = "") -> None:
        if runs:
            self.parts.append(part_of(self.folder, name))
            self.running.append(start(kind, self.parts[-1], runs, self.clock.left() / 60, conf))

    def trackers(self) -> None:
        """MemTracker takes the longest and little but processor time: beside the timed runs, at a low priority."""
        tracked = [run for run in self.runs if not conf_of(run)]
        for share in range(self.workers):
            self.begin("memtracker", f"tracker{share}", tracked[share :: self.workers])

    def queue(self) -> list[tuple[str, str, list[Run], str]]:
        found: list[tuple[str, str, list[Run], str]] = []
        by_conf: dict[str, list[Run]] = {}
        for run in self.runs:
            if conf_of(run) and run[0] not in OWN_PROCESS:
                by_conf.setdefault(conf_of(run), []).append(run)
        for conf, group in by_conf.items():
            third = -(-len(group) // 3)
            found += [("measure", f"conf{i}", group[i : i + third], conf) for i in range(0, len(group), third)]
        here = {run[0] for run in self.runs}
        fresh = [run for run in self.runs if run[0] in OWN_PROCESS]
        fresh += [run for run in map(run_of, FRESH) if run[0] in here and run in self.runs]
        for run in fresh:
            found.append(("fresh", "fresh_" + name_of(run).replace(":", "_"), [run], conf_of(run)))
        return found

    def rest(self) -> None:
        queue = self.queue()
        own: list[subprocess.Popen[bytes]] = []
        while (queue or any(process.poll() is None for process in self.running)) and self.clock.left() > 2:
            own = [process for process in own if process.poll() is None]
            while queue and len(own) < self.workers and self.clock.left() > 10:
                self.begin(*queue.pop(0))
                own.append(self.running[-1])
            time.sleep(0.1)
        self.stop()

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait()
        gather(self.out, self.parts)
        self.running, self.parts = [], []


def done(out: Path) -> list[str]:
    """The runs that the file holds, of the long-lived process."""
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    return [
        f"{row['model']}:{row['batch']}:{row['setting']}"
        for row in rows
        if row["kind"] == "truth" and row["how"] == "in process" and not row["conf"]
    ]


def known_runs(path: Path) -> set[str]:
    """The runs that a file of truth has, measured without an error."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        f"{row['model']}:{row['batch']}:{row['setting']}"
        for row in rows
        if row["kind"] == "truth" and "error" not in row
    }


def timed_runs(out: Path, runs: list[Run], clock: Clock, others: Beside) -> None:
    """The runs with a clock, in one process; in another after an error that cost the device's context, or a hang."""
    left = [run for run in runs if not conf_of(run) and run[0] not in OWN_PROCESS]
    alone = len({run[0] for run in left})
    while left and clock.left() > 5:
        process = start("timed", out, left, clock.left() / 60, alone=alone)
        before, since = len(done(out)), time.monotonic()
        while process.poll() is None:
            time.sleep(0.3)
            now = len(done(out))
            if now != before:
                before, since = now, time.monotonic()
            if alone and now >= alone:
                # Until here that process was alone on the device, and `used` is its own.
                others.trackers()
                alone = 0
            if time.monotonic() - since > RUN_S + 30:
                process.kill()
        finished = set(done(out))
        missing = [run for run in left if name_of(run) not in finished]
        if len(missing) == len(left):
            print(f"{name_of(left[0])}: ended its process", file=sys.stderr)
            missing = missing[1:]
        left = missing
        alone = max(0, alone - len(finished))
    if left:
        print(f"time is up: {len(left)} runs left out: {', '.join(map(name_of, left))}", file=sys.stderr)
    if not others.running:
        others.trackers()


def everything(arguments: argparse.Namespace, runs: list[Run], clock: Clock) -> None:
    others = Beside(arguments.out, runs, clock, arguments.workers)
    timed_runs(arguments.out, runs, Clock(arguments.minutes * arguments.share), others)
    others.rest()
    print(f"{arguments.out}: {60 * arguments.minutes - clock.left():.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--share", type=float, default=0.65, help="of the time, for the timed runs")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="batch 4 throughout")
    parser.add_argument("--skip", type=Path, help="leave out the runs that this file of truth has")
    parser.add_argument("--list", action="store_true", help="print the runs and stop")
    parser.add_argument("--kind", choices=("all", "timed", "measure", "fresh", "memtracker"), default="all")
    parser.add_argument("--alone", type=int, default=0, help="so many runs have the device to themselves")
    parser.add_argument("--runs", default="", help="MODEL:BATCH:SETTING, separated by commas")
    arguments = parser.parse_args()
    clock = Clock(arguments.minutes)
    only = arguments.only.split(",") if arguments.only else None
    runs = (
        [run_of(name) for name in arguments.runs.split(",")] if arguments.runs else planned(only, small=arguments.small)
    )
    if arguments.skip:
        known = known_runs(arguments.skip)
        runs = [run for run in runs if name_of(run) not in known]
    if arguments.list:
        print("\n".join(map(name_of, runs)))
        return 0
    if arguments.kind == "all":
        everything(arguments, runs, clock)
        return 0
    gpu = device()
    lines = Lines(arguments.out)
    if arguments.kind == "memtracker":
        os.nice(10)
        for run in runs:
            if clock.left() > 1:
                mem_tracker(lines, gpu, run, clock)
        return 0
    if arguments.kind == "fresh":
        record(lines, gpu, runs[0], "fresh process", clock, timed=False)
        return 0
    lines.put(kind="about", **gpu.about(), runs=len(runs), conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    warm_up(gpu)
    for number, run in enumerate(runs):
        if clock.left() > 3:
            record(
                lines, gpu, run, "in process", clock, timed=arguments.kind == "timed", alone=number < arguments.alone
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
