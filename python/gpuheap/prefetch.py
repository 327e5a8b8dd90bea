"""Batches on the device before they are needed, and never more of them than was said."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from gpuheap._nested import map_leaves
from gpuheap._ring import Ring, alias_count_works
from gpuheap._streams import Cuda, Layer

__all__ = ["Prefetch", "prefetch"]

T = TypeVar("T")


def prefetch(loader: Iterable[T], device: Any = None, depth: int = 2) -> Prefetch[T]:
    """Iterate over the batches of ``loader`` on ``device``, copied there while the batch before is worked on.

    At most ``depth`` batches are on the device, the one in use included, each in one block of memory; so ``depth`` is
    at least 2. Copies go through pinned host memory (unless the loader's tensors are pinned already) on a stream of
    their own; the stream that is current when a batch is taken waits for its copy, and its memory is used again once
    the program has dropped the batch and that stream is done with it. A batch that the program keeps stays as it is,
    and counts in addition.

    Dictionaries, lists, tuples, named tuples and dataclasses come back as they were. What is no plain CPU tensor but
    has a method ``to`` (sparse tensors, packed sequences, batches of graphs) is moved by that, when it is taken.

    The loader is iterated in a thread, in order; what it raises is raised at its place, after the batches before. If it
    draws random numbers in this process (a DataLoader without workers), they mix with the program's own. A loop that
    is left early releases everything: at once with ``close()`` of the iterator, else when the iterator is dropped.

    ``device`` [default: the current CUDA device]. Without CUDA, or for another device, batches are moved as they are
    taken, with no thread; without PyTorch they come unchanged.

    >>> for batch in gpuheap.prefetch(loader, "cuda"):
    ...     loss = step(batch)
    """
    return Prefetch(loader, device, depth)


class Prefetch(Generic[T]):
    """What :func:`prefetch` returns: iterate over it as often as over ``loader``."""

    def __init__(self, loader: Iterable[T], device: Any = None, depth: int = 2) -> None:
        """Check the settings; starts nothing."""
        if depth < 2:
            raise ValueError(f"`depth` is {depth}, expected at least 2: the batch in use is one of them")
        self.loader = loader
        self.device = device
        self.depth = depth

    def __iter__(self) -> Batches[T]:
        """Start a pass over the loader."""
        layer, device = _place(self.device)
        batches = iter(self.loader)
        return Batches(batches, device, None if layer is None else Ring(batches, layer, self.depth))

    def __len__(self) -> int:
        """Return the number of batches, if the loader knows it."""
        length: int = len(self.loader)  # type: ignore[arg-type]
        return length


class Batches(Iterator[T]):
    """One pass over the loader."""

    def __init__(self, batches: Iterator[T], device: Any, ring: Ring | None) -> None:
        """Take what makes the batches."""
        self._batches: Iterator[T] | None = batches if ring is None else None
        self._device = device
        self._ring = ring

    def __next__(self) -> T:
        """Return the next batch, on the device."""
        if self._ring is not None:
            batch: T = self._ring.next()
            return batch
        if self._batches is None:
            raise StopIteration
        try:
            batch = next(self._batches)
        except BaseException:
            # As with a thread: after an error there is nothing more.
            self.close()
            raise
        if self._device is None:
            return batch
        moved: T = map_leaves(batch, self._move)
        return moved

    def close(self) -> None:
        """Stop and release every buffer; there are no more batches then."""
        batches, self._batches = self._batches, None
        close = getattr(batches, "close", None)
        if close is not None:
            close()
        if self._ring is not None:
            self._ring.close()

    def _move(self, value: Any) -> Any:
        return value.to(self._device) if callable(getattr(value, "to", None)) else value

    def __del__(self) -> None:
        """Do what :meth:`close` does."""
        # At the end of the interpreter the thread, and what it waits for, may be gone.
        if getattr(self, "_ring", None) is not None and not sys.is_finalizing():
            self.close()


def _place(device: Any) -> tuple[Layer | None, Any]:
    """Streams of the device, if it has them, and the device, if batches are to be moved."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None
    has_cuda = torch.cuda.is_available()
    if device is None:
        device = "cuda" if has_cuda else "cpu"
    device = torch.device(device)
    if device.type != "cuda":
        return None, device
    if not has_cuda:
        return None, None
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if not alias_count_works(torch):
        return None, device
    return Cuda(torch, device), device
