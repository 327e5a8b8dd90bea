"""Which module made which tensor: the outputs of forward passes, by the name of the module."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from gpuheap._record import labels

__all__ = ["Activations"]

MOST = 500_000
"""Outputs that are kept: 24 bytes of host memory each."""

_DEEPEST = 6


class Activations:
    """Listens to every module's forward pass. Costs some microseconds a module."""

    def __init__(self, torch: Any) -> None:
        """Begin to listen."""
        self._torch = torch
        self._names: list[str] = []
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Three numbers an output: the name's and the device's in one, address, time. Together, so that what interrupts
        # this cannot come between them.
        self._rows = array("Q")
        # The search for names asks modules of the program, which may do anything.
        self._lock = threading.RLock()
        self._next_search = 0.0
        # PyTorch before 2.1 has none, and asks no hook while it compiles.
        self._compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
        self._hook: Any = torch.nn.modules.module.register_module_forward_hook(self._after)

    def remove(self) -> None:
        """Listen no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def labels(self) -> Iterator[labels.Label]:
        """All that was heard, oldest first."""
        for row in range(0, len(self._rows), 3):
            of, address, now = self._rows[row : row + 3]
            yield labels.Label(of & 0xFFFF, address, now, "activation", self._names[of >> 16])

    @property
    def full(self) -> bool:
        """Whether there was more than is kept."""
        return len(self._rows) >= 3 * MOST

    def _after(self, module: Any, _: Any, output: Any) -> None:
        # A program that is being compiled or traced has no memory behind its tensors.
        if self._compiling() or self.full:
            return
        try:
            now = time.time_ns() // 1000
            for tensor in self._tensors(output, 0):
                place = labels.place(self._torch, tensor)
                if place is not None:
                    self._add(place, now, module)
        except Exception:
            # Whatever an object in an output does when it is looked at: the program goes on.
            return

    def _add(self, place: tuple[int, int], now: int, module: Any) -> None:
        with self._lock:
            name = self._known.get(module)
            if name is None:
                name = self._name(module)
            self._rows.extend((name << 16 | place[0], place[1], now))

    def _name(self, module: Any) -> int:
        now = time.monotonic()
        # Modules that are made in every forward pass are not looked for each time.
        if now >= self._next_search:
            for name, known in labels.modules(self._torch):
                with contextlib.suppress(Exception):
                    self._learn(known, name)
            self._next_search = time.monotonic() + 20 * (time.monotonic() - now)
        # What is not among them was made in a forward pass, and is gone after it.
        return self._learn(module, type(module).__name__)

    def _learn(self, module: Any, name: str) -> int:
        known = self._known.get(module)
        if known is None:
            known = self._known[module] = len(self._names)
            self._names.append(labels.plain(name))
        return known

    def _tensors(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, self._torch.Tensor):
            yield value
        elif depth < _DEEPEST and isinstance(value, (tuple, list)):
            for part in value:
                yield from self._tensors(part, depth + 1)
        elif depth < _DEEPEST and isinstance(value, dict):
            for part in value.values():
                yield from self._tensors(part, depth + 1)
