"""Storages on the device: when each is made and when it is dropped.

A storage's Python object lives exactly as long as the storage itself, however many tensors and autograd nodes share it,
so a weak reference to it tells the moment at which PyTorch's caching allocator would get the memory back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Storages"]

CLASSES = (
    "parameter",
    "buffer",
    "gradient",
    "optimizer",
    "activation",
    "temporary",
    "input",
    "loss",
    "workspace",
    "unknown",
)


class Storages:
    """The storages that were seen, by number, and which of them are alive."""

    def __init__(self, on_alloc: Callable[[int], None], on_free: Callable[[int], None]) -> None:
        """``on_alloc`` and ``on_free`` are told the number of a storage that was made or dropped."""
        self._on_alloc = on_alloc
        self._on_free = on_free
        self.bytes: list[int] = []
        self.classes: list[str] = []
        self.modules: list[int] = []
        self.dtypes: list[str] = []
        self.names: list[str] = []
        # By the address of the C++ object, which may be used again once the storage is dropped.
        self._alive: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def find(self, tensor: Any) -> int:
        """The number of a tensor's storage, or -1 if it is none of these."""
        return self._alive.get(tensor.untyped_storage()._cdata, -1)

    def add(self, tensor: Any, kind: str, module: int) -> int:
        """The number of a tensor's storage, which is new or known."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._alive.get(address)
        if number is not None:
            return number
        size = storage.nbytes()
        if not size:
            # The allocator is not asked.
            return -1
        number = self._new(size, kind, module, str(tensor.dtype).removeprefix("torch."))
        self._alive[address] = number

        def dropped(_: Any, address: int = address, number: int = number) -> None:
            if self._references.pop(number, None) is not None:
                self._alive.pop(address, None)
                self._on_free(number)

        self._references[number] = weakref.ref(storage, dropped)
        self._on_alloc(number)
        return number

    def scratch(self, size: int, kind: str, module: int, name: str = "") -> int:
        """A storage that no tensor of the program shows, in use until :meth:`end_scratch`."""
        number = self._new(size, kind, module, "uint8", name)
        self._on_alloc(number)
        return number

    def end_scratch(self, number: int) -> None:
        """Drop what :meth:`scratch` made."""
        self._on_free(number)

    def _new(self, size: int, kind: str, module: int, dtype: str, name: str = "") -> int:
        self.bytes.append(size)
        self.classes.append(kind)
        self.modules.append(module)
        self.dtypes.append(dtype)
        self.names.append(name)
        return len(self.bytes) - 1

    def alive(self) -> list[int]:
        """The numbers of those that are alive."""
        return sorted(self._alive.values())

    def forget(self) -> None:
        """Follow none of them any longer."""
        self._references.clear()
        self._alive.clear()
