"""`python -m gpuheap._fit verify plan.json`: runs a plan on the GPU, in a process of its own, and says what it took."""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._fit.form import read
from gpuheap._fit.known_device import keep, kept
from gpuheap.errors import Error

__all__ = ["command_of", "main", "run_plan", "verify"]

AGREES, DISAGREES, UNUSABLE = 0, 1, 2
_HANGS_AFTER_S = 1800
# How long ranks that are told to end may take for it.
_GRACE_S = 10
# The settings of PyTorch's allocator; without PyTorch this module has to say so, and not fail to be imported.
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# What a run counts against all that were before it.
_HALF = 0.5
# Runs between none of the activations and too many, beside one with none.
_HALVINGS = 3


def main(arguments: list[str]) -> int:
    """The command; its exit code: 0 the plan keeps its budget, 1 it does not, 2 bad input or no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuheap._fit verify", description="Run a plan for a few steps on this machine's GPU."
    )
    parser.add_argument("plan", metavar="PLAN.json", help="what `gpuheap fit --json` wrote")
    parser.add_argument("--make", metavar="FILE:FUNCTION", help="another make() than that of the plan")
    parser.add_argument("--calibration", metavar="FILE", help="where what was learnt about the GPU is kept")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="steps that are timed [default: 5]")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=_HANGS_AFTER_S, help=argparse.SUPPRESS)
    parser.add_argument("--build-there", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        plan = read(options.plan)
        make = options.make or (plan.get("source") or {}).get("make")
        if not make:
            raise Error(
                f"{options.plan} does not say which function made the program",
                "Give it: `--make train.py:make`.",
            )
        if options.child is not None:
            # Also where a rank waits for another that is gone, and no code of Python's comes to its turn.
            faulthandler.dump_traceback_later(options.limit, exit=True)
            return _child(plan, make, options.steps, Path(options.child), options.limit, options.build_there)
        answer = verify(plan, make, steps=options.steps, calibration=options.calibration)
    except Error as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return UNUSABLE
    print(json.dumps(answer, indent=1))
    print(text_of(answer), file=sys.stderr)
    return AGREES if answer["fits"] else DISAGREES


def verify(
    plan: Mapping[str, Any], make: str, *, steps: int = 5, calibration: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Run the plan in a child process, or in one for each GPU, and compare.

    Raises:
        Error: there is no GPU or not enough of them, or the program failed for another reason than memory.
    """
    _require_gpus(plan)
    real = run_plan(plan, make, steps=steps)
    budget = int(plan.get("budget_bytes", 0))
    tried: list[dict[str, Any]] = []
    start = kept_part(plan.get("plan", ()))
    if start is not None and budget and not _within(real, budget):
        driven = drive(lambda part: run_plan(with_part(plan, part), make, steps=steps), start, budget, tried)
        if driven is not None:
            part, real = driven
            plan = with_part(plan, part)
    predicted = {**plan.get("peak", {}), "step_us": plan.get("step_us", 0.0)}
    learnt = _learnt(plan, real, calibration)
    if calibration is not None and learnt is not None:
        keep(Path(calibration), learnt)
    return {
        "schema": "gpuheap.fit.verify/1",
        "fits": _within(real, budget),
        "budget_bytes": budget,
        "predicted": {
            name: predicted.get(name, 0) for name in ("allocated_bytes", "reserved_bytes", "device_bytes", "step_us")
        },
        "real": real,
        "calibration": learnt,
        "activation_memory_budget": kept_part(plan.get("plan", ())) if tried else None,
        "tried": tried,
    }


def _within(real: Mapping[str, Any], budget: int) -> bool:
    return bool(real["fits"] and (not budget or real["device_bytes"] <= budget))


def kept_part(levers: Sequence[Mapping[str, Any]]) -> float | None:
    """The `activation_memory_budget` of a plan that compiles with one."""
    part = next((one.get("activation_memory_budget") for one in levers if one.get("lever") == "compile"), None)
    return None if part is None else float(part)


def with_part(plan: Mapping[str, Any], part: float) -> dict[str, Any]:
    """The plan with another `activation_memory_budget`."""
    levers = [
        {**one, "activation_memory_budget": part} if one.get("lever") == "compile" else one for one in plan["plan"]
    ]
    return {**plan, "plan": levers}


def drive(
    run: Callable[[float], dict[str, Any]], start: float, budget: int, tried: list[dict[str, Any]]
) -> tuple[float, dict[str, Any]] | None:
    """The largest part of the activations that compiled code may keep within a budget, and what it took; else None.

    What a part comes to in bytes only a run tells: the partitioner weighs activations by its own estimate, and the
    compiler joins operators afterwards. ``start`` has been run and does not fit.
    """

    def attempt(part: float) -> dict[str, Any] | None:
        real = run(part)
        fits = _within(real, budget)
        tried.append({"activation_memory_budget": part, "device_bytes": real["device_bytes"], "fits": fits})
        return real if fits else None

    if start <= 0.0:
        return None
    # Where the least is too much, nothing between helps.
    least = attempt(0.0)
    if least is None:
        return None
    best, too_much = (0.0, least), start
    for _ in range(_HALVINGS):
        part = round((best[0] + too_much) / 2, 3)
        real = attempt(part)
        if real is None:
            too_much = part
        else:
            best = (part, real)
    return best


def run_plan(
    plan: Mapping[str, Any], make: str, *, steps: int = 5, seconds: float = _HANGS_AFTER_S, build_there: bool = False
) -> dict[str, Any]:
    """Run the plan's levers in a child process; what it took, the largest of all ranks.

    Each process ends itself after ``seconds``, whatever it waits for. With ``build_there`` weights are filled on the
    device, see :func:`gpuheap._fit.measure.measure`.

    Raises:
        Error: the program failed for another reason than memory, or did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "plan.json", Path(folder) / "real.json"
        # Levers alone will do here; in a file a plan says what it comes to.
        file.write_text(json.dumps({"verdict": "fits", **plan}), encoding="utf-8")
        command, environment = command_of(plan.get("plan", ()))
        arguments = ["verify", str(file), "--make", make, "--steps", str(steps), "--child", str(out)]
        arguments += ["--limit", str(seconds), *(["--build-there"] if build_there else [])]
        code, text = _run([*command, "gpuheap._fit", *arguments], {**os.environ, **environment}, seconds)
        if out.exists():
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return found
        lines = [line for line in text.splitlines() if line.strip()]
        if any(line.startswith("Timeout (") for line in lines):
            at = next((line.strip() for line in lines if line.lstrip().startswith("File ")), "")
            raise Error(f"the program had not ended after {seconds:g} seconds, and was stopped", at or None)
        last = next((line for line in reversed(lines) if not line.startswith(" ")), f"exit code {code}")
        last = next((line for line in lines if line.startswith("error: ")), last).removeprefix("error: ")
        hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), None)
        raise Error(f"the plan could not be run: {last}", hint or "\n".join(lines[-12:]) or None)


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Run it; its exit code and what it said.

    Raises:
        Error: it has not ended long after its processes should have ended themselves.
    """
    with subprocess.Popen(
        list(command), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as child:
        try:
            _, text = child.communicate(timeout=seconds + _GRACE_S)
        except subprocess.TimeoutExpired as error:
            # torchrun ends its ranks when it is asked to; killed at once it would leave them behind.
            child.terminate()
            try:
                child.communicate(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
            raise Error(f"the program had not ended after {seconds:g} seconds, and was stopped") from error
    return child.returncode, text


def command_of(levers: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """What starts a process, or one for each GPU, under these levers, up to the name of a module; and its variables."""
    command = [sys.executable, "-m"]
    environment: dict[str, str] = {}
    for lever in levers:
        if lever.get("lever") == "shard":
            gpus = int(lever.get("gpus", 2))
            command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus), "-m"]
            environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
        elif lever.get("lever") == "allocator":
            environment[_ALLOCATOR] = str(lever.get("conf", ""))
    spill = next((lever for lever in levers if lever.get("lever") == "spill"), None)
    if spill is not None:
        run = [sys.executable, "-m", "gpuheap", "run", "--spill", str(int(spill.get("bytes", 0)))]
        command = [*run, "--", *command]
    return command, environment


def _child(plan: Mapping[str, Any], make: str, steps: int, out: Path, limit: float, build_there: bool) -> int:
    """In the process that runs the plan: measure, agree with the other ranks, and write."""
    import torch

    from gpuheap._fit.load import load
    from gpuheap._fit.measure import Real, measure

    function = load(make)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    levers = [_lever_only(lever) for lever in plan.get("plan", ())]
    if ranks > 1:
        import torch.distributed as dist

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo", timeout=datetime.timedelta(seconds=limit)
        )
    size = (plan.get("batch") or {}).get("size")
    real = measure(function, levers, timed_steps=steps, batch=size, build_there=build_there)
    rows = [real]
    if ranks > 1:
        import torch.distributed as dist

        if not real.fits:
            # The others wait in an exchange that this rank will not come to: end them all, with what is known.
            if rank == 0 or not out.exists():
                keep(out, real.as_json())
            os._exit(DISAGREES)
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(gathered, real)
        rows = gathered
        dist.destroy_process_group()
    if rank == 0:
        keep(out, _largest([row if isinstance(row, Real) else Real(**row) for row in rows]))
    return AGREES


def _lever_only(lever: Mapping[str, Any]) -> dict[str, Any]:
    """A lever without what the planner says of it."""
    beside = ("saves_bytes", "costs_us", "what", "why", "code")
    return {name: value for name, value in lever.items() if name not in beside}


def _largest(rows: Sequence[Any]) -> dict[str, Any]:
    """One row for all ranks: the most of each figure, since the fullest card decides."""
    found: dict[str, Any] = rows[0].as_json()
    for name in ("allocated_bytes", "reserved_bytes", "device_bytes", "context_bytes", "step_us", "retries"):
        found[name] = max(getattr(row, name) for row in rows)
    found["fits"] = all(row.fits for row in rows)
    found["ranks"] = [row.as_json() for row in rows] if len(rows) > 1 else None
    return found


def _require_gpus(plan: Mapping[str, Any]) -> None:
    try:
        import torch
    except ImportError as error:
        raise Error(f"PyTorch cannot be imported: {error}", "Install it, or leave `--verify` out.") from error
    wanted = max([int(lever.get("gpus", 1)) for lever in plan.get("plan", ()) if lever.get("lever") == "shard"] or [1])
    # Counted without a context, which would take memory from the run.
    there = torch.cuda.device_count() if torch.backends.cuda.is_built() else 0
    if there == 0:
        why = "there is no CUDA device" if torch.backends.cuda.is_built() else "this PyTorch was built without CUDA"
        raise Error(f"a plan is verified on a GPU, and {why}", "Leave `--verify` out; planning needs no GPU.")
    if there < wanted:
        raise Error(f"the plan is for {wanted} GPUs, and there are {there}", "Plan for those that are there: `--gpus`.")


def _learnt(plan: Mapping[str, Any], real: Mapping[str, Any], path: Any) -> dict[str, Any] | None:
    """What this run says about the device, with what earlier ones said; None if it says nothing."""
    if not real["fits"] or not real["step_us"] or kept_part(plan.get("plan", ())) is not None:
        # What compiled code takes was not predicted: its error says nothing about other plans.
        return None
    device = str(plan.get("device") or real["device"])
    factor = real["step_us"] / plan["step_us"] if plan.get("step_us") else 1.0
    peak = plan.get("peak") or {}
    names = [name for name in ("allocated_bytes", "reserved_bytes") if real.get(name)]
    error = max((abs(peak.get(name, 0) - real[name]) / real[name] for name in names), default=0.0)
    before = kept(Path(path), device) if path is not None else {}
    if before.get("runs"):
        # The plan's time has the factor of before in it; what this run says of it counts half.
        factor = float(before.get("time_factor", 1.0)) * factor**_HALF
        error = max(error, float(before.get("peak_error", 0.0)))
    return {
        **before,
        "device": device,
        "time_factor": factor,
        "context_bytes": real["context_bytes"],
        "peak_error": error,
        "runs": int(before.get("runs", 0)) + 1,
    }


def text_of(answer: Mapping[str, Any]) -> str:
    """Predicted and real, as a small table."""
    predicted, real = answer["predicted"], answer["real"]
    lines = [f"{'':<10}  {'predicted':>10}  {'real':>10}  {'error':>7}"]
    for name in ("allocated", "reserved", "device"):
        one, other = predicted[f"{name}_bytes"], real[f"{name}_bytes"]
        off = f"{(one - other) / other:+.1%}" if other else ""
        lines.append(f"{name:<10}  {bytes_text(one):>10}  {bytes_text(other):>10}  {off:>7}")
    if real["step_us"]:
        off = f"{(predicted['step_us'] - real['step_us']) / real['step_us']:+.1%}"
        times = f"{predicted['step_us'] / 1e3:>7.1f} ms  {real['step_us'] / 1e3:>7.1f} ms"
        lines.append(f"{'step':<10}  {times}  {off:>7}")
    for one in answer.get("tried", ()):
        held = "fits" if one["fits"] else "does not fit"
        part = one["activation_memory_budget"]
        lines.append(f"activation_memory_budget {part:g}: {bytes_text(one['device_bytes'])}, {held}")
    if real.get("out_of_memory"):
        lines.append(f"out of memory: {real['out_of_memory']}")
    verdict = "fits" if answer["fits"] else "does not fit"
    lines.append(f"It {verdict} into {bytes_text(answer['budget_bytes'])}." if answer["budget_bytes"] else "")
    return "\n".join(lines).rstrip()
