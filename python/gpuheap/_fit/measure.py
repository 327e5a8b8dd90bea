"""Runs a program with a plan for some steps, and says what it took."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpuheap._fit.apply import Applied, apply
from gpuheap._fit.program import Program, as_program
from gpuheap._nvml import nvml

__all__ = ["Real", "applied_to", "measure", "on_device", "part_of_rank", "used_bytes"]


@dataclass
class Real:
    """What a run took on one device. Bytes and microseconds."""

    fits: bool = True
    """Whether it ran to its end."""
    allocated_bytes: int = 0
    """The most that tensors held, as PyTorch counts."""
    reserved_bytes: int = 0
    """The most that PyTorch's allocator held."""
    device_bytes: int = 0
    """The most that the process took of the device: reserved, context, libraries."""
    context_bytes: int = 0
    """Device bytes that are not the allocator's."""
    step_us: float = 0.0
    """The median of the timed steps."""
    steps: int = 0
    """Timed steps."""
    losses: tuple[float, ...] = ()
    """Of the first steps."""
    retries: int = 0
    """Times that the allocator gave its cache back to ask again."""
    out_of_memory: str | None = None
    """What PyTorch said when memory ran out."""
    device: str = ""

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def measure(
    make: Callable[[], Any],
    levers: Sequence[Mapping[str, Any]],
    *,
    warm_steps: int = 2,
    timed_steps: int = 5,
    most_seconds: float = 20.0,
    batch: int | None = None,
    seed: int = 0,
    build_there: bool = False,
) -> Real:
    """Build the program, apply the levers and run: peaks are over everything, times over the steps after the first.

    Nothing of it may be on the device before: run it in a process of its own. Out of memory is a result, any other
    error is raised. With ``build_there`` weights are filled on the device, which is faster, and then take the way of
    those that were not.
    """
    import torch

    cuda = torch.cuda.is_available()
    used_before = used_bytes() if cuda else 0
    real = Real(device=torch.cuda.get_device_name() if cuda else "cpu")
    times: list[float] = []
    losses: list[float] = []
    try:
        torch.manual_seed(seed)
        program = _built(torch, make) if build_there and cuda else as_program(make())
        applied, whole = applied_to(program, levers, "cuda" if cuda else "cpu", batch)
        del program
        _synchronize(torch, cuda)
        began = time.perf_counter()
        for number in range(warm_steps + timed_steps):
            start = time.perf_counter()
            loss = applied.step(whole)
            _synchronize(torch, cuda)
            seconds = time.perf_counter() - start
            if number < warm_steps:
                losses.append(float(loss) if loss is not None else float("nan"))
            else:
                times.append(seconds)
            if times and time.perf_counter() - began > most_seconds:
                break
            del loss
    except torch.OutOfMemoryError as error:
        real.fits = False
        real.out_of_memory = str(error).partition("\n")[0]
    if cuda:
        counters = torch.cuda.memory_stats()
        real.allocated_bytes = int(counters.get("allocated_bytes.all.peak", 0))
        real.reserved_bytes = int(counters.get("reserved_bytes.all.peak", 0))
        real.retries = int(counters.get("num_alloc_retries", 0))
        held = int(counters.get("reserved_bytes.all.current", 0))
        real.context_bytes = max(used_bytes() - used_before - held, 0)
        real.device_bytes = real.reserved_bytes + real.context_bytes
    real.step_us = statistics.median(times) * 1e6 if times else 0.0
    real.steps, real.losses = len(times), tuple(losses)
    return real


def _built(torch: Any, make: Callable[[], Any]) -> Program:
    with torch.device("cuda"):
        program = as_program(make())
    program.model.cpu()
    program.batch = program.batch if callable(program.batch) else on_device(program.batch, "cpu")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return program


def applied_to(
    program: Program, levers: Sequence[Mapping[str, Any]], device: str, batch: int | None = None
) -> tuple[Applied, Any]:
    """The program on its device with the levers, and this rank's batch there."""
    program.model.to(device)
    loss = program.loss if program.step is None else _as_whole(program.step)
    applied = apply(levers, program.model, program.optimizer, loss=loss)
    return applied, on_device(part_of_rank(_batch(program, batch), levers), device)


def _as_whole(step: Any) -> Any:
    if getattr(step, "whole_step", False):
        return step

    def whole(model: Any, optimizer: Any, batch: Any) -> Any:
        return step(model, optimizer, batch)

    whole.whole_step = True  # type: ignore[attr-defined]
    return whole


def _batch(program: Program, size: int | None) -> Any:
    from gpuheap._fit import batches

    if batches.is_maker(program.batch):
        return batches.make(program.batch, size)
    return program.batch if size is None else batches.resized(program.batch, size)


def part_of_rank(batch: Any, levers: Sequence[Mapping[str, Any]]) -> Any:
    """What this rank takes of the batch: a part under data parallelism and FSDP2, else all of it."""
    from gpuheap._fit.apply.batch import split

    shard = next((lever for lever in levers if lever.get("lever") == "shard"), None)
    if shard is None or shard.get("form") not in ("data", "fsdp2"):
        return batch
    import torch.distributed as dist

    return split(batch, dist.get_world_size())[dist.get_rank()]


def on_device(batch: Any, device: str) -> Any:
    """The batch there."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)


def _synchronize(torch: Any, cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def used_bytes() -> int:
    """Bytes in use on this process' device by all processes, as the driver says. Makes no context for the question."""
    place = _place()
    found = nvml().devices() or []
    for device in found:
        if device.used is not None and (device.uuid == place or str(device.index) == place or len(found) == 1):
            return int(device.used)
    return 0


def _place() -> str:
    """The device of this process as NVML knows it: its number, or its UUID where programs are told UUIDs."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return visible[local] if local < len(visible) else str(local)
