"""Storages on the device: when each is made and when it is dropped.

A storage's Python object lives exactly as long as the storage itself, however many tensors and autograd nodes share it,
so a weak reference to it tells the moment at which PyTorch's caching allocator would get the memory back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Storages", "local", "pieces", "resizing"]

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
        self.streams: list[int] = []
        """The stream whose memory each has."""
        self.stream: Callable[[], int] = lambda: 0
        """The stream that memory is asked for on now."""
        # By the address of the C++ object, which may be used again once the storage is dropped.
        self._alive: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        # Storages whose memory was given back and that are still there: what they were.
        self._emptied: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def find(self, tensor: Any) -> int:
        """The number of a tensor's storage, or -1 if it is none of these; of a sparse one that of its values."""
        return self._alive.get(_parts(tensor)[-1].untyped_storage()._cdata, -1)

    def add(self, tensor: Any, kind: str, module: int) -> int:
        """The number of a tensor's storage, which is new or known; of a sparse one that of its values."""
        *others, tensor = _parts(tensor)
        for other in others:
            self.add(other, kind, module)
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
        self._follow(storage, number)
        return number

    def _follow(self, storage: Any, number: int) -> None:
        address = storage._cdata
        self._alive[address] = number

        def dropped(_: Any, address: int = address, number: int = number) -> None:
            if self._references.pop(number, None) is not None:
                self._alive.pop(address, None)
                self._on_free(number)

        self._references[number] = weakref.ref(storage, dropped)
        self._on_alloc(number)

    def resized(self, storage: Any) -> None:
        """A storage has another size now: its memory was given back, and other memory is there if it has any."""
        address = storage._cdata
        number = self._alive.pop(address, None)
        if number is not None and self._references.pop(number, None) is not None:
            self._on_free(number)
        elif address in self._emptied:
            number = self._emptied.pop(address)[0]
        if number is None:
            return
        size = storage.nbytes()
        if size:
            again = self._new(size, self.classes[number], self.modules[number], self.dtypes[number], self.names[number])
            self._follow(storage, again)
        else:

            def dropped(_: Any, address: int = address) -> None:
                self._emptied.pop(address, None)

            self._emptied[address] = (number, weakref.ref(storage, dropped))

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
        self.streams.append(self.stream())
        return len(self.bytes) - 1

    def alive(self) -> list[int]:
        """The numbers of those that are alive."""
        return sorted(self._alive.values())

    def forget(self) -> None:
        """Follow none of them any longer."""
        self._references.clear()
        self._alive.clear()
        self._emptied.clear()


def _parts(tensor: Any) -> list[Any]:
    """The tensors that a sparse one consists of, its values last; any other alone."""
    layout = tensor.layout
    if layout is torch.strided or layout not in _INDICES:
        return [tensor]
    with torch._C._DisableTorchDispatch():
        return [getattr(tensor, name)() for name in _INDICES[layout]]


_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_INDICES = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}


def local(tensor: Any) -> Any:
    """The tensor that a rank has of one that is spread over ranks; any other as it is."""
    for name in ("_local_tensor", "elem"):
        inner = getattr(tensor, name, None)
        tensor = tensor if inner is None else inner
    return tensor


def pieces(value: Any) -> Iterator[Any]:
    """The tensors that hold the memory of a tensor: itself, or what it consists of, such as numbers of 8 bits and their
    scales. Nothing for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        return
    inner = local(value)
    flatten = getattr(type(inner), "__tensor_flatten__", None)
    if flatten is None or isinstance(inner, FakeTensor):
        yield inner
        return
    for name in inner.__tensor_flatten__()[0]:
        yield from pieces(getattr(inner, name))


@contextmanager
def resizing(storages: Callable[[], Storages]) -> Iterator[None]:
    """Follow programs that give the memory of a storage back and keep the storage, as FSDP2 does with parameters."""
    kind: Any = torch.UntypedStorage
    before = kind.resize_

    def resize_(storage: Any, size: int) -> Any:
        out = before(storage, size)
        storages().resized(storage)
        return out

    kind.resize_ = resize_
    try:
        yield
    finally:
        del kind.resize_
