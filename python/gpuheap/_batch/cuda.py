"""The meter of a CUDA device: the counters of PyTorch's allocator, and its limit."""

from __future__ import annotations

from typing import Any

from gpuheap._batch.meter import Counts

__all__ = ["CudaMeter", "spilled_bytes"]

# What may be seen by looking at two counters at different times, and what a driver keeps for itself, in bytes.
_NOISE = 64 << 20


class CudaMeter:
    """Counts by ``torch.cuda.memory_stats``; the budget is a limit of the allocator itself."""

    def __init__(self, torch: Any, index: int) -> None:
        """Make a context on the device."""
        self._torch = torch
        self._index = index
        # What the program calls "cuda" is this device.
        torch.cuda.set_device(index)
        self.free: int | None = int(torch.cuda.mem_get_info(index)[0])
        self._total = int(torch.cuda.get_device_properties(index).total_memory)
        self._failed = 0

    def begin(self, budget: int | None) -> None:
        """Limit the allocator."""
        cuda = self._torch.cuda
        cuda.empty_cache()
        self.free = int(cuda.mem_get_info(self._index)[0])
        limit = min(self.free if budget is None else budget, self._total)
        # Half a byte more, so that rounding does not make it one byte less.
        cuda.set_per_process_memory_fraction(min((limit + 0.5) / self._total, 1.0), self._index)
        self._failed = 0
        self._failed = self.failures()
        self.counts()

    def counts(self) -> Counts:
        """Read the allocator's counters."""
        stats = self._torch.cuda.memory_stats(self._index)
        self._torch.cuda.reset_peak_memory_stats(self._index)
        return Counts(
            int(stats.get("allocated_bytes.all.current", 0)),
            int(stats.get("allocated_bytes.all.peak", 0)),
            int(stats.get("reserved_bytes.all.peak", 0)),
        )

    def failures(self) -> int:
        """Count retries, and failures that somebody has caught."""
        stats = self._torch.cuda.memory_stats(self._index)
        return max(int(stats.get("num_alloc_retries", 0)), int(stats.get("num_ooms", 0))) - self._failed

    def spilled(self) -> int:
        """See :func:`spilled_bytes`."""
        cuda = self._torch.cuda
        free, total = cuda.mem_get_info(self._index)
        return spilled_bytes(self.free or 0, int(free), int(cuda.memory_reserved(self._index)), int(total))

    def outside(self) -> int | None:
        """What the device has less than before the run, and the allocator has not: libraries, their handles, NCCL."""
        cuda = self._torch.cuda
        taken = (self.free or 0) - int(cuda.mem_get_info(self._index)[0])
        return max(taken - int(cuda.memory_reserved(self._index)), 0)

    def finish(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize(self._index)

    def end(self) -> bool:
        """Give everything back; an allocator that holds nothing is as good as that of a new process."""
        torch = self._torch
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_reserved(self._index)) == 0


def spilled_bytes(free_before: int, free_after: int, reserved: int, total: int) -> int:
    """How much of what an allocator has taken cannot lie on the device.

    Drivers for Windows (WSL included) give host memory when the device is full, and nobody gets an error. Then more has
    been taken than the device had, or the device's free memory has not shrunk by what was taken. That other processes
    gave memory back meanwhile looks the same only where the device was not full.
    """
    beyond = reserved - free_before
    if free_after < max(_NOISE, total // 50):
        beyond = max(beyond, reserved - (free_before - free_after))
    return beyond if beyond > _NOISE else 0
