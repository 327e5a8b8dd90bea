"""The objects that the steps make, apart from the hundreds of thousands that were there before.

A look at all objects, or a collection of reference cycles, takes a tenth of a second per million of them. What is there
before the steps is frozen (`gc.freeze`) while they run: collections leave it alone, and only its tensors and optimizers
are looked at, through weak references.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuheap._held import _optimizers
from gpuheap._tensors import live_tensors

__all__ = ["Heap"]

# The interpreter freezes some hundred of its own objects; who has more frozen wants them to stay so.
_FROZEN_AT_START = 5_000


class Heap:
    """A context manager: inside, what was there before is frozen."""

    def __init__(self, torch: Any) -> None:
        """Looks at nothing yet."""
        self._torch = torch
        self._tensors: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._frozen = False

    def __enter__(self) -> Heap:
        """Freezes."""
        gc.collect()
        if gc.get_freeze_count() <= _FROZEN_AT_START:
            self._freeze()
        return self

    def __exit__(self, *error: object) -> None:
        """All objects are as they were."""
        if self._frozen:
            self._frozen = False
            gc.unfreeze()

    def _freeze(self) -> None:
        self._tensors = [weakref.ref(tensor) for tensor in live_tensors(self._torch)]
        self._optimizers = [weakref.ref(optimizer) for optimizer in _optimizers(self._torch)]
        gc.freeze()
        self._frozen = True

    @contextmanager
    def thawed(self) -> Iterator[None]:
        """Inside, all objects can be seen. Cycles are collected before they are frozen again."""
        again = self._frozen
        self.__exit__()
        try:
            yield
        finally:
            if again:
                gc.collect()
                self._freeze()

    def tensors(self) -> list[Any]:
        """All live tensors."""
        old = [tensor for tensor in (reference() for reference in self._tensors) if tensor is not None]
        if not self._frozen:
            return live_tensors(self._torch)
        known = {id(tensor) for tensor in old}
        return live_tensors(self._torch, old + [one for one in gc.get_objects() if id(one) not in known])

    def optimizers(self) -> list[Any]:
        """All live optimizers."""
        old = [one for one in (reference() for reference in self._optimizers) if one is not None]
        known = {id(one) for one in old}
        return old + [one for one in _optimizers(self._torch) if id(one) not in known]
