"""One run of a batch size, in a process of its own: some steps under the budget, and what they took."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuheap import _transfer
from gpuheap._batch.failures import first_line, is_out_of_memory
from gpuheap._batch.meter import Meter, meter_for
from gpuheap._batch.phases import Phases
from gpuheap._batch.search import FITS, Probe
from gpuheap._held import by_class
from gpuheap.errors import Error

__all__ = ["Order", "Ran", "run"]

# Calls until the optimizers have made their steps: some calls only accumulate, and a gradient scaler skips the first.
_MOST_CALLS = 64
# Steps until the allocator no longer takes more, as a multiple of those that were asked for.
_SETTLE = 4
# Of a launcher. The process of a run is alone, and must not wait for others.
_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)


@dataclass(frozen=True, slots=True)
class Order:
    """What to run."""

    make: bytes
    """The factory, pickled for itself: it is loaded after the process has been prepared."""
    batch: int
    steps: int
    budget: int | None
    device: str | None
    extra: int | None
    """Bytes that something else will hold; None for as many as the gradients."""
    training: bool
    """Whether optimizer steps are waited for."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What has come of it."""

    probe: Probe
    device: str
    clean: bool
    """Whether the process is as good as new."""


def run(order: Order) -> Ran:
    """Make the step, call it, and tell. What the program raises, other than that memory ran out, goes on."""
    began = time.monotonic()
    _leave_the_group()
    device, meter = meter_for(order.device)
    import torch

    phases = Phases(torch, meter)
    done = _Done()
    error: str | None = None
    where: str | None = None
    meter.begin(order.budget)
    try:
        phases.watch_calls()
        try:
            _run_steps(torch, order, device, phases, meter, done)
        except BaseException as raised:
            if not is_out_of_memory(raised):
                raise
            error, where = first_line(raised), phases.phase
            # The frames hold the tensors of the failed step.
            traceback.clear_frames(raised.__traceback__)
        finally:
            phases.close()
        failures, spilled = meter.failures(), meter.spilled()
        verdict = FITS
        if error is not None:
            verdict = "out of memory"
        elif failures:
            verdict = "retries"
        elif spilled:
            verdict = "spill"
        probe = Probe(
            order.batch,
            verdict,
            phases.peaks(complete=error is None),
            phases.start,
            phases.reserved,
            complete=error is None,
            steps=phases.optimizer_steps if order.training and phases.optimizers else done.calls,
            retries=failures,
            seconds=time.monotonic() - began,
            message=error,
            where=where,
            held=done.held if error is None else by_class(torch, _kind(device))[0],
            outside=meter.outside(),
            free=meter.free,
            optimizers=tuple(phases.optimizers),
            settled=done.settled,
        )
        done.step = None
        gc.collect()
    finally:
        # Also after an error of the program: the mode of a meter must not outlive the run.
        given_back = meter.end()
    return Ran(probe, device, clean=error is None and given_back and not _changed_for_good(torch))


@dataclass(slots=True)
class _Done:
    """How far a run has come."""

    step: Callable[[], Any] | None = None
    calls: int = 0
    settled: bool = False
    held: dict[str, int] = field(default_factory=dict)


def _run_steps(torch: Any, order: Order, device: str, phases: Phases, meter: Meter, done: _Done) -> None:
    make = _transfer.loads(order.make)
    step = make(order.batch)
    if not callable(step):
        raise Error(
            f"`{_name(make)}({order.batch})` returned {type(step).__name__}, expected a function that does one step",
            "return the function itself, without calling it: `return step`, not `return step()`",
        )
    done.step = step
    parameters = _parameters(torch)
    # Stands for what will be there in the real program, but not in this process.
    extra = sum(_bytes_of(one) for one in parameters) if order.extra is None else order.extra
    beside = torch.empty(extra, dtype=torch.uint8, device=device) if extra else None
    has_optimizer = order.training and _has_optimizer(torch)
    if order.training:
        phases.watch_parameters(parameters)
    unchanged, reserved = 0, 0
    while True:
        phases.begin_step(done.calls)
        _expect_done(step())
        phases.end_step()
        done.calls += 1
        unchanged = unchanged + 1 if phases.reserved <= reserved else 0
        reserved = phases.reserved
        done.settled = unchanged > 0
        made = phases.optimizer_steps if has_optimizer or phases.optimizers else done.calls
        if done.calls >= _MOST_CALLS or (made >= order.steps and (done.settled or done.calls >= _SETTLE * order.steps)):
            break
        if meter.failures() and made >= order.steps:
            break
    meter.finish()
    done.held = by_class(torch, _kind(device))[0]
    del beside


def _expect_done(result: object) -> None:
    """Refuse what has not run yet: it would take no memory, and any size would fit."""
    if inspect.isgenerator(result) or inspect.isawaitable(result):
        raise Error(
            f"The step returned a {type(result).__name__}, and has done nothing yet",
            "give a function that does one step when it is called: without `yield`, and not `async`",
        )


def _kind(device: str) -> str:
    return "cpu" if device == "cpu" else "accelerator"


def _leave_the_group() -> None:
    """Forget the launcher that started the program: `Accelerator()` in a run would wait for the other ranks."""
    for name in _LAUNCHER:
        os.environ.pop(name, None)
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:
        del os.environ[name]


def _changed_for_good(torch: Any) -> bool:
    """Whether something of the run stays in the process that would change the next one."""
    # Code compiled for one size is compiled for any size at the second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and sum(dynamo.counters.get("frames", {}).values()):
        return True
    distributed = getattr(torch, "distributed", None)
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def _parameters(torch: Any) -> list[Any]:
    """Everything that a backward pass will have gradients for, in the order in which it was made."""
    kind = torch.nn.Parameter
    return [
        value for value in gc.get_objects() if issubclass(type(value), kind) and value.is_leaf and value.requires_grad
    ]


def _bytes_of(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _has_optimizer(torch: Any) -> bool:
    kind = torch.optim.Optimizer
    return any(issubclass(type(value), kind) for value in gc.get_objects())


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
