"""What a run of a batch size needs to know of a device: the interface of its meters."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gpuheap.errors import Error

__all__ = ["Counts", "Meter", "meter_for"]


class Counts(NamedTuple):
    """Bytes since the counts before."""

    allocated: int
    """What tensors hold now."""
    peak: int
    """The most that they held."""
    reserved: int
    """The most that the allocator had taken from the device."""


class Meter(Protocol):
    """Counts what tensors take on one device, and lets them have no more than a budget."""

    free: int | None
    """Bytes that the device had for this process before the run, if that can be told."""

    def begin(self, budget: int | None) -> None:
        """Count from here on. Past the budget, in bytes, an operation raises an out-of-memory error."""

    def counts(self) -> Counts:
        """Return the counts, and begin anew."""
        ...

    def failures(self) -> int:
        """Return how many requests were met only after others had been given back, or not at all, so far."""
        ...

    def spilled(self) -> int:
        """Return how many bytes lie in host memory though they were asked of the device."""
        ...

    def outside(self) -> int | None:
        """Return how many bytes this process takes on the device beside its allocator, if that can be told."""
        ...

    def finish(self) -> None:
        """Wait for all work of the run, so that its errors appear within it."""

    def end(self) -> bool:
        """Stop counting, once the run's tensors are dropped; tell whether all its memory has come back."""
        ...


def meter_for(device: str | None) -> tuple[str, Meter]:
    """Return a device by name and its meter: CUDA where there is one, else the CPU.

    Raises:
        Error: there is no such device here, or no meter for it.
    """
    try:
        import torch
    except ImportError as error:
        raise Error(
            f"`find_batch_size` measures PyTorch, which the process of a run could not import\n  cause: {error}",
            "install it into this environment",
        ) from None
    try:
        wanted: Any = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
    except RuntimeError as error:
        raise Error(f"`{device}` is not a device\n  cause: {error}", 'write "cuda", "cuda:1" or "cpu"') from None
    if wanted.type == "cpu":
        from gpuheap._batch.cpu import CpuMeter

        return "cpu", CpuMeter()
    if wanted.type != "cuda":
        raise Error(f"`find_batch_size` cannot measure `{wanted}`", 'it knows "cuda" (ROCm included) and "cpu"')
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = wanted.index or 0
    if index >= count:
        raise Error(
            f"`{wanted}` is not there: the process of a run sees {count} CUDA devices",
            "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES" if count else 'device="cpu" works without one',
        )
    from gpuheap._batch.cuda import CudaMeter

    return f"cuda:{index}", CudaMeter(torch, index)
