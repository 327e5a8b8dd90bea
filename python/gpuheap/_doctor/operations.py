"""Follows the operations of the steps: which line made which memory, which copies go to the device, what is used.

PyTorch calls `__torch_dispatch__` for every operation of the thread and of the backward passes that it starts. It costs
25 to 35 µs each, and `torch.compile` runs functions uncompiled meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gpuheap._doctor.sites import Stack, user_stack
from gpuheap._doctor.within import tensors_within
from gpuheap._tensors import storages_of
from gpuheap._tracker import _new_outputs, weak_storage

__all__ = ["Made", "Operations", "Transfer", "following"]

_JOINING = frozenset(("aten.cat.default", "aten.stack.default", "aten.constant_pad_nd.default"))
_COPIES = frozenset(("aten._to_copy.default", "aten.copy_.default"))
_NOWHERE = Stack(())


@dataclass(slots=True)
class Made:
    """A storage, and where it was made."""

    weak: Any
    stack: Stack
    backward: bool
    """Whether a backward pass made it."""
    joined: int | None = None
    """The key of a storage of an earlier step that it begins with or contains: it was joined with new parts."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy from the host to a device."""

    bytes: int
    pinned: bool
    non_blocking: bool
    in_loader: bool
    stack: Stack


@dataclass
class Operations:
    """What was seen so far."""

    torch: Any
    wanted: Callable[[str], bool]
    made: dict[int, Made] = field(default_factory=dict)
    """By key of the storage."""
    transfers: list[Transfer] = field(default_factory=list)
    watched: frozenset[int] = frozenset()
    """Keys of storages of which it is to be known whether the program uses them."""
    used: set[int] = field(default_factory=set)
    """Those of them that were."""
    carried: frozenset[int] = frozenset()
    """Keys of what was alive before this step and is no part of the model."""
    written: dict[int, Stack] = field(default_factory=dict)
    """By key: the line that last changed one of these in place."""
    in_loader: bool = False
    backward: Stack | None = None
    """The call of the backward pass that runs: in threads of its own it has no frames of the program."""
    known: dict[Any, bool] = field(default_factory=dict)

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operation has ended."""
        name = str(func)
        if self.watched:
            for tensor in tensors_within(self.torch, (args, tuple(kwargs.values()))):
                self.used.update(one.key for one in storages_of(self.torch, tensor) if one.key in self.watched)
        if name in _COPIES:
            self._transfer(args, kwargs, result, name)
        # A deep copy makes the storage out of sight, and shows it here for the first time.
        if not name.startswith("aten.set_.") and not _new_outputs(func, self.known):
            self._written(name, args)
            return
        stack: Stack | None = None
        for tensor in tensors_within(self.torch, (result,)):
            for storage in storages_of(self.torch, tensor):
                if not storage.bytes or not self.wanted(storage.device):
                    continue
                known = self.made.get(storage.key)
                if known is not None and not known.weak.expired():
                    continue
                weak = weak_storage(self.torch, tensor, storage.key)
                if weak is None:
                    continue
                stack = self.stack() if stack is None else stack
                joined = self._joined(args, storage.bytes) if name in _JOINING else None
                self.made[storage.key] = Made(weak, stack, self.backward is not None, joined)

    def _written(self, name: str, args: tuple[Any, ...]) -> None:
        # `add_`, as in `total += loss`; views are no change.
        if self.carried and args and name.partition(".")[2].partition(".")[0].endswith("_"):
            for tensor in tensors_within(self.torch, args[:1], 1):
                for one in storages_of(self.torch, tensor):
                    if one.key in self.carried:
                        self.written[one.key] = self.stack()

    def stack(self) -> Stack:
        """The user's lines that are running."""
        stack = user_stack(sys._getframe(1))
        return self.backward or _NOWHERE if not stack.sites else stack

    def _joined(self, args: tuple[Any, ...], size: int) -> int | None:
        for tensor in tensors_within(self.torch, args):
            for one in storages_of(self.torch, tensor):
                if one.key in self.carried and size > one.bytes:
                    return one.key
        return None

    def _transfer(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, name: str) -> None:
        tensors = list(tensors_within(self.torch, args[:2]))
        source = tensors[1] if name == "aten.copy_.default" and len(tensors) > 1 else tensors[0] if tensors else None
        target = next(iter(tensors_within(self.torch, (result,))), None)
        if source is None or target is None or source.device.type != "cpu" or target.device.type in ("cpu", "meta"):
            return
        blocking = kwargs.get("non_blocking", args[2] if name == "aten.copy_.default" and len(args) > 2 else False)
        size = int(source.numel()) * int(source.element_size())
        self.transfers.append(Transfer(size, bool(source.is_pinned()), bool(blocking), self.in_loader, self.stack()))

    def forget_freed(self) -> None:
        """Drops what is no longer alive."""
        for key in [key for key, one in self.made.items() if one.weak.expired()]:
            del self.made[key]


def _dispatch(
    mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    result = func(*args, **(kwargs or {}))
    try:
        mode.operations.see(func, args, kwargs or {}, result)
    except Exception:  # what cannot be looked at is left out: the program's operation is done
        return result
    return result


_classes: dict[type, type] = {}


def following(operations: Operations) -> Any:
    """A context manager: operations of this thread inside are seen."""
    # Made when it is needed: its base class is PyTorch's, and the program has loaded that by now.
    base = import_module("torch.utils._python_dispatch").TorchDispatchMode
    kind = _classes.get(base)
    if kind is None:
        kind = _classes[base] = type("GpuheapDoctor", (base,), {"__torch_dispatch__": _dispatch})
    mode: Any = kind()
    mode.operations = operations
    return mode
