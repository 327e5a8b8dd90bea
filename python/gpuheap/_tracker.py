"""Follows the operations of one thread, to know what it allocates, where, and when a budget is passed.

Used only where a scope has a budget, asks for sites, or shares the process with a scope of another thread: PyTorch
calls `__torch_dispatch__` for every operation, which costs 25 to 35 µs each. The mode is part of the thread's
state that autograd takes along, so memory that a backward pass allocates counts, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Any

from gpuheap._frames import is_own_code, place
from gpuheap._objects import is_instance
from gpuheap._tensors import storages_of

__all__ = ["Allocations", "Seen", "begin", "end"]

_PRUNE_FROM = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """One storage that an operation made."""

    weak: Any
    """Keeps the storage's identity from being used again, not its memory."""
    bytes: int
    site: str | None
    """`train.py:42 (step)`"""


class Allocations:
    """What one scope's thread has allocated since the scope began."""

    def __init__(
        self, wanted: Callable[[str], bool], exceeded: Callable[[int], BaseException] | None, limit: int
    ) -> None:
        self.seen: dict[int, Seen] = {}
        self._wanted = wanted
        self._exceeded = exceeded
        self._limit = limit
        self._sum = 0
        self._prune_at = _PRUNE_FROM
        self.peak = 0
        """The most bytes that were alive at once, as far as they were counted."""
        self.torch: Any = None

    def live(self) -> dict[int, Seen]:
        """What is still alive of it."""
        for key in [key for key, one in self.seen.items() if one.weak.expired()]:
            del self.seen[key]
        self._sum = sum(one.bytes for one in self.seen.values())
        return self.seen

    def add(self, tensor: Any, site: str | None) -> None:
        """An operation has made `tensor`. Raises if that passes the budget."""
        for storage in storages_of(self.torch, tensor):
            if not storage.bytes or not self._wanted(storage.device):
                continue
            known = self.seen.get(storage.key)
            if known is not None and not known.weak.expired():
                continue
            if known is not None:
                self._sum -= known.bytes
            weak = weak_storage(self.torch, tensor, storage.key)
            if weak is None:
                continue
            self.seen[storage.key] = Seen(weak, storage.bytes, site)
            self._sum += storage.bytes
            if self._exceeded is not None and self._sum > self._limit:
                self.live()
            elif len(self.seen) > self._prune_at:
                # Without a budget nothing else would ever forget what has been freed.
                self.live()
                self._prune_at = max(_PRUNE_FROM, 2 * len(self.seen))
            self.peak = max(self.peak, self._sum)
            if self._exceeded is not None and self._sum > self._limit:
                raise self._exceeded(self._sum)


def weak_storage(torch: Any, tensor: Any, key: int) -> Any | None:
    """A weak reference to the storage of a tensor; None if it has none of its own."""
    try:
        untyped = tensor.untyped_storage()
        return (
            import_module("torch.multiprocessing.reductions").StorageWeakRef(untyped)
            if int(untyped._cdata) == key
            else None
        )
    except Exception:  # sparse tensors and wrappers
        return None


def _site() -> str | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_own_code(code) and "site-packages" not in code.co_filename and "<frozen" not in code.co_filename:
            return f"{place(code, frame.f_lineno)} ({code.co_name})"
        frame = frame.f_back
    return None


class _Thread(threading.local):
    mode: Any = None


_thread = _Thread()
_mode_classes: dict[type, type] = {}


def _new_outputs(func: Any, known: dict[Any, bool]) -> bool:
    # An output that is a view of an input, or the input itself, is no new memory.
    new = known.get(func)
    if new is None:
        returns = getattr(getattr(func, "_schema", None), "returns", ())
        # `torch.tensor` makes its memory out of sight and shows it here for the first time.
        lifts = getattr(func, "__name__", "").startswith("lift_fresh")
        new = lifts or not returns or any(value.alias_info is None for value in returns)
        known[func] = new
    return new


def _dispatch(
    mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """Tells all scopes of one thread about each new tensor."""
    result = func(*args, **(kwargs or {}))
    if _new_outputs(func, mode.known):
        site = _site()
        for value in result if isinstance(result, (tuple, list)) else (result,):
            for scope in tuple(mode.scopes):
                if is_instance(value, scope.torch.Tensor):
                    scope.add(value, site)
    return result


def _new_mode() -> Any:
    # Made when it is needed: its base class is PyTorch's, and the program has loaded that by now.
    base = import_module("torch.utils._python_dispatch").TorchDispatchMode
    kind = _mode_classes.get(base)
    if kind is None:
        kind = _mode_classes[base] = type("GpuheapTracker", (base,), {"__torch_dispatch__": _dispatch})
    mode: Any = kind()
    mode.scopes = []
    mode.known = {}
    return mode


def begin(torch: Any, allocations: Allocations) -> Any:
    """Follows this thread's operations from now on; returns what `end` needs."""
    allocations.torch = torch
    mode = _thread.mode
    if mode is None:
        mode = _new_mode()
        mode.__enter__()
        _thread.mode = mode
    mode.scopes.append(allocations)
    return mode


def end(mode: Any, allocations: Allocations) -> None:
    """No longer follows them for this scope; for the last scope of the thread the hook goes."""
    for position, scope in enumerate(mode.scopes):
        if scope is allocations:
            del mode.scopes[position]
            break
    if not mode.scopes and _thread.mode is mode:
        _thread.mode = None
        mode.__exit__(None, None, None)
