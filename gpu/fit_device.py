"""The device under the measurements of `gpuheap fit`: CUDA, or a stand-in without figures to try the scripts on."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Gpu:
    """One CUDA device and its caching allocator, with the figures that a program's user sees."""

    name = "cuda"

    def about(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "device_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": list(torch.cuda.get_device_capability()),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "python": sys.version.split()[0],
        }

    def fresh(self) -> int:
        """As near to a new process as one gets inside an old one; the bytes that still are allocated."""
        gc.collect()
        torch.cuda.synchronize()
        clear_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated()

    def reserved(self) -> int:
        return torch.cuda.memory_reserved()

    def peaks(self) -> dict[str, int]:
        counters = torch.cuda.memory_stats()
        return {
            "allocated": counters.get("allocated_bytes.all.peak", 0),
            "reserved": counters.get("reserved_bytes.all.peak", 0),
            "requested": counters.get("requested_bytes.all.peak", 0),
            "active": counters.get("active_bytes.all.peak", 0),
        }

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def retries(self) -> int:
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def used(self) -> int:
        """Bytes in use on the whole device, as NVML counts: contexts, this process and every other."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class NoGpu(Gpu):
    """Runs on the processor; every figure of memory is 0. It tries the scripts, it measures nothing."""

    name = "cpu"

    def about(self) -> dict[str, Any]:
        return {"device": "cpu", "device_bytes": 0, "torch": torch.__version__, "python": sys.version.split()[0]}

    def fresh(self) -> int:
        gc.collect()
        return 0

    def allocated(self) -> int:
        return 0

    def reserved(self) -> int:
        return 0

    def peaks(self) -> dict[str, int]:
        return {"allocated": 0, "reserved": 0, "requested": 0, "active": 0}

    def reset(self) -> None:
        pass

    def retries(self) -> int:
        return 0

    def used(self) -> int:
        return 0

    def synchronize(self) -> None:
        pass


def clear_workspaces() -> None:
    """Gives back what cuBLAS has taken for its handles; it takes it again at its next use, as in a new process."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def device() -> Gpu:
    return NoGpu() if os.environ.get("ZOO_DEVICE") == "cpu" else Gpu()


def to_device(value: Any, name: str) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.to(name) if isinstance(t, torch.Tensor) else t, value)


class TooLong(Exception):
    """A run took longer than it may."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises `TooLong` in the main thread once the time is over; a call into a library ends first."""

    def stop(*_: object) -> None:
        raise TooLong(f"took longer than {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


class Lines:
    """A file of JSON lines that is complete up to its last line whenever the process ends."""

    def __init__(self, path: str | Path) -> None:
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def put(self, **row: Any) -> None:
        self.file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.file.flush()


def reason(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:240]}"


class Clock:
    """The time left."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    def left(self) -> float:
        return self.end - time.monotonic()
