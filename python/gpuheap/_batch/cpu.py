"""The meter of the CPU: follows every storage that an operation makes, to its end.

There is no allocator to ask, so a dispatch mode sees the results of all operations, and a weak reference to each
storage tells when it is freed: at once, also of those that only autograd holds. What is allocated within one operation
and freed before its end is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

from gpuheap._batch.meter import Counts
from gpuheap._bytes import bytes_text

__all__ = ["CpuMeter"]


class CpuMeter:
    """Counts the bytes of CPU storages; the budget is a limit on their sum."""

    def __init__(self) -> None:
        """Nothing is followed yet."""
        self.free: int | None = None
        self._budget: int | None = None
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._allocated = 0
        self._peak = 0
        self._refused = 0
        self._mode: Any = None

    def begin(self, budget: int | None) -> None:
        """Follow the operations of this thread."""
        self._budget = budget
        self._sizes.clear()
        self._allocated = self._peak = self._refused = 0
        self._mode = _mode(self)
        self._mode.__enter__()

    def counts(self) -> Counts:
        """Nothing is kept for later here, so as much is reserved as is held."""
        counts = Counts(self._allocated, self._peak, self._peak)
        self._peak = self._allocated
        return counts

    def failures(self) -> int:
        """Count refusals: the program may have caught them."""
        return self._refused

    def spilled(self) -> int:
        """Host memory is where it should be."""
        return 0

    def outside(self) -> int | None:
        """Return nothing: the host's memory is everybody's."""
        return None

    def finish(self) -> None:
        """Nothing runs ahead here."""

    def end(self) -> bool:
        """Stop following."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
        return self._allocated == 0

    def see(self, tensor: Any) -> None:
        """Take account of the storage of a tensor that an operation has returned."""
        try:
            storage = tensor.untyped_storage()
            if storage.device.type != "cpu":
                return
            key, size = int(storage._cdata), int(storage.nbytes())
        except Exception:  # sparse tensors, wrappers and fakes have none of their own
            return
        known = self._sizes.get(key)
        if known is not None and known[0]() is storage:
            if known[1] == size:
                return
            # Resized in place.
            self._forget(key, known[0])
        self._sizes[key] = (weakref.ref(storage, lambda weak: self._forget(key, weak)), size)
        self._allocated += size
        self._peak = max(self._peak, self._allocated)
        if self._budget is not None and self._allocated > self._budget:
            self._refused += 1
            raise _out_of_memory(size, self._allocated - size, self._budget)

    def _forget(self, key: int, weak: Any) -> None:
        known = self._sizes.get(key)
        if known is not None and known[0] is weak:
            del self._sizes[key]
            self._allocated -= known[1]


def _out_of_memory(size: int, held: int, budget: int) -> Exception:
    import torch

    # The name of all versions.
    kind: type[Exception] = torch.cuda.OutOfMemoryError
    return kind(
        f"CPU out of memory under a budget of {bytes_text(budget)}: {bytes_text(held)} are held, and "
        f"{bytes_text(size)} more were asked for"
    )


def _mode(meter: CpuMeter) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    tensor_type = torch.Tensor

    class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(value, tensor_type):
                    meter.see(value)
                elif isinstance(value, (tuple, list)):
                    for inner in value:
                        if isinstance(inner, tensor_type):
                            meter.see(inner)
            return result

    return Mode()
