"""PyTorch's allocators: CUDA and ROCm, XPU, MPS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuheap import _nvml
from gpuheap._frameworks.torch import capturing, cuda_devices
from gpuheap._watch.pace import Pace
from gpuheap._watch.source import Around, Counters

__all__ = ["Torch"]

PROCESSES_SHARE = 0.0005
"""The share of the time that lists of processes may take: they cost from 10 µs to 5 ms, by machine."""


# More than any device has: a driver that says so does not know.
_MOST_BYTES = 1 << 46


class Torch:
    """All devices on which PyTorch has a context."""

    collects = True
    paced = True

    def __init__(self, torch: Any) -> None:
        """`torch` is the loaded module."""
        self._torch = torch
        self._others: dict[str, int | None] = {}
        self._nvml: dict[str, int | None] = {}
        self._pace = Pace(PROCESSES_SHARE)
        # What is below `torch.cuda.memory_stats`, which would make a flat copy of it: the same from 2.0 to 2.15.
        self._stats: dict[str, Callable[[int], dict[str, Any]] | None] = {
            "cuda": getattr(torch._C, "_cuda_memoryStats", None),
            "xpu": getattr(torch._C, "_xpu_memoryStats", None),
        }
        self._counts: bool | None = None

    def devices(self) -> list[str]:
        """`cuda:0` and so on."""
        torch = self._torch
        found = [f"cuda:{index}" for index in cuda_devices(torch)]
        if found and self._counts is None:
            backend = getattr(torch.cuda.memory, "get_allocator_backend", None)
            # CUDA's own pools do not count their blocks.
            self._counts = backend is None or backend() == "native"
        xpu = getattr(torch, "xpu", None)
        if xpu is not None and self._stats["xpu"] is not None and getattr(xpu, "is_initialized", bool)():
            found += [f"xpu:{index}" for index in range(xpu.device_count())]
        mps = getattr(torch, "mps", None)
        backend = getattr(getattr(torch, "backends", None), "mps", None)
        if mps is not None and backend is not None and backend.is_available() and mps.driver_allocated_memory():
            found.append("mps:0")
        return found

    def counters(self, device: str) -> Counters:
        """Some 10 µs."""
        kind, _, index = device.partition(":")
        stats = self._stats.get(kind)
        if stats is None:
            mps = self._torch.mps
            return (mps.current_allocated_memory(), None, mps.driver_allocated_memory(), None, None, 0, 0)
        rows = stats(int(index))
        reserved = rows["reserved_bytes"]["all"]
        blocks = rows["allocation"]["all"]["current"] if kind == "cuda" and self._counts else None
        return (
            rows["allocated_bytes"]["all"]["current"],
            blocks,
            reserved["current"],
            rows["active_bytes"]["all"]["peak"],
            reserved["peak"],
            rows.get("num_alloc_retries", 0),
            rows.get("num_ooms", 0),
        )

    def around(self, device: str) -> Around:
        """Some 10 µs, and the list of processes now and then."""
        kind, _, number = device.partition(":")
        index = int(number)
        torch = self._torch
        if kind == "mps":
            limit = getattr(torch.mps, "recommended_max_memory", None)
            most = None if limit is None else int(limit())
            free = None if most is None else max(most - int(torch.mps.driver_allocated_memory()), 0)
            return Around(free, most)
        ask = getattr(getattr(torch, kind), "mem_get_info", None)
        # While a graph is recorded the driver must not be disturbed.
        if ask is None or (kind == "cuda" and capturing(torch)):
            return Around()
        free, total = ask(index)
        if kind != "cuda":
            return Around(int(free), int(total))
        return Around(int(free), int(total), self._held_by_others(device, index), self._limit(index, int(total)))

    def _limit(self, index: int, total: int) -> int | None:
        ask = getattr(self._torch._C, "_cuda_getMemoryFraction", None)
        fraction = 1.0 if ask is None else float(ask(index))
        return int(total * fraction) if 0 < fraction < 1 else None

    def _held_by_others(self, device: str, index: int) -> int | None:
        start = self._pace.clock()
        if self._pace.ready(start):
            try:
                number = self._number(device, index)
                processes = None if number is None else _nvml.processes(number)
                self._others[device] = None if processes is None else _not_own(processes)
            finally:
                self._pace.spent(self._pace.clock() - start)
        return self._others.get(device)

    def _number(self, device: str, index: int) -> int | None:
        """Which of NVML's GPUs a device is: CUDA numbers those that it is allowed to see."""
        if device not in self._nvml:
            known = _nvml.devices() or []
            uuid = getattr(self._torch.cuda.get_device_properties(index), "uuid", None)
            if uuid is not None:
                same = [one.index for one in known if one.uuid == f"GPU-{uuid}" and not one.mig]
            else:
                # PyTorch before 2.5 does not say. Where there is one, it is that one.
                same = [one.index for one in known if len(known) == 1 and not one.mig]
            self._nvml[device] = same[0] if len(same) == 1 else None
        return self._nvml[device]


def _not_own(processes: list[_nvml.Process]) -> int | None:
    if not any(process.own for process in processes):
        # The driver numbers processes in another namespace than ours: whose is whose cannot be told.
        return None
    others = 0
    for process in processes:
        if process.own:
            continue
        if process.bytes is None:
            return None
        others += process.bytes
    return others if others <= _MOST_BYTES else None
