"""Traces a program: one pass through `make()`, two steps, and phases beside them, into one object for `gpuheap-fit`."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from gpuheap._fit.errors import TraceError, place_of, said
from gpuheap._fit.hints import hint_of
from gpuheap._fit.pretend import Gpu

__all__ = ["PHASES", "SCHEMA", "trace"]

SCHEMA = "gpuheap.fit.trace/1"
PHASES = ("evaluation", "generation", "saving")
"""Phases that are traced on request, after the steps."""


def trace(
    make: Callable[[], Any],
    *,
    batch: int | None = None,
    levers: Sequence[Mapping[str, Any]] = (),
    phases: Iterable[str] = (),
    source: str | None = None,
    gpu: Gpu | None = None,
    device_type: str = "cuda",
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Trace two training steps of a program, as they would run on a GPU. No GPU is needed, and none is used.

    Args:
        make: returns `(model, optimizer, loss, batch)`; see :mod:`gpuheap._fit.program` for its forms.
        batch: another number of samples than that of the example batch.
        levers: what is applied to the model and the optimizer before the first step.
        phases: of :data:`PHASES`, what else is traced.
        source: what `make` is called in the trace and in messages.
        gpu: the GPU that the program believes to have.
        device_type: only `cuda`.
        progress: told what comes next.

    Raises:
        TraceError: the program fails, or something in it cannot be traced; the message says where.
    """
    try:
        import torch
    except ImportError as error:
        raise TraceError(
            f"PyTorch cannot be imported: {error}",
            "A model is traced with the PyTorch that it trains with: install it.",
        ) from error
    try:
        from gpuheap._fit.rank import Handed
        from gpuheap._fit.session import Session
    except ImportError as error:
        raise TraceError(
            f"{torch.__file__} is not PyTorch: {error}" if not hasattr(torch, "Tensor") else str(error),
            "A file beside the program may have the name of a library: call it something else.",
        ) from error
    del torch
    if device_type != "cuda":
        raise TraceError(f"device type {device_type!r} cannot be traced, only cuda")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown:
        raise TraceError(f"there is no phase {unknown[0]!r}; choose of {', '.join(PHASES)}")
    name = str(source or getattr(make, "__qualname__", "make"))
    file = getattr(getattr(make, "__code__", None), "co_filename", None)
    handed, results = Handed(), []
    for rank in _ranks(levers):
        session = Session(gpu or Gpu(), name, file, rank, handed)
        with ExitStack() as stack:
            session.open(stack)
            progress("making the model" if rank == 0 else f"making the model for rank {rank}")
            session.build(make, batch, levers)
            for number in (1, 2):
                progress(f"tracing step {number}" + (f" of rank {rank}" if rank else ""))
                session.step(number)
            for phase in phases:
                progress(f"tracing {phase}")
                session.extra(phase)
            results.append(session.result())
            session.close()
        gc.collect()
    result = results[0]
    for one in results:
        one["source"].update(make=name, python=platform.python_version())
        if levers:
            one["applied"] = [dict(lever) for lever in levers]
    if len(results) > 1:
        result["ranks"] = results[1:]
    return result


def _ranks(levers: Sequence[Mapping[str, Any]]) -> range:
    """Ranks that differ: the stages of a pipeline. In other forms the first is as full as any."""
    shard = next((lever for lever in levers if lever.get("lever") == "shard"), None)
    return range(int(shard.get("gpus", 2)) if shard is not None and shard.get("form") == "pipeline" else 1)


def failed(what: str, error: BaseException, file: str | None) -> TraceError:
    """An error of the program's in words, with the program's own line."""
    if isinstance(error, TraceError):
        return error
    place = place_of(error.__traceback__, file)
    words = said(error)
    message = f"{what}: {words}"
    return TraceError(f"{message}\n  at {place}" if place else message, hint_of(words))
