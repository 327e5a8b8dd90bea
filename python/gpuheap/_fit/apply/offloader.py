"""Saved tensors on the host: copied out behind the forward pass and back in ahead of the backward pass."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Offloader"]


class _Saved:
    """One storage that was saved: its bytes on the host, and on the device while it is on its way."""

    __slots__ = ("__weakref__", "ahead", "arrived", "bytes", "device_copy", "host", "left", "place")

    def __init__(self, host: Any, left: Any, place: int) -> None:
        self.host = host
        self.bytes = host.nbytes
        self.left = left
        """The copy to the host is done when this event is."""
        self.arrived: Any = None
        """The copy to the device is done when this event is."""
        self.device_copy: Any = None
        self.place = place
        """Its turn among all that were saved: backward asks for them in about the opposite order."""
        self.ahead: Offloader | None = None
        """Whose window it takes part of: it was fetched before it was asked for."""

    def take(self) -> None:
        """The copy to the device is wanted now, or never: wait for it, and free its part of the window."""
        if self.arrived is not None:
            torch.cuda.current_stream(self.device_copy.device).wait_event(self.arrived)
            self.arrived = None
        if self.ahead is not None:
            self.ahead.bytes_ahead -= self.bytes
            self.ahead = None

    def __del__(self) -> None:
        # A graph that goes without its backward must not free memory that is still written to.
        self.take()


class _View:
    """What autograd keeps in place of a tensor."""

    __slots__ = ("dtype", "offset", "saved", "shape", "stride")

    def __init__(self, saved: _Saved, tensor: Any) -> None:
        self.saved = saved
        self.dtype, self.shape, self.stride = tensor.dtype, tensor.shape, tensor.stride()
        self.offset = tensor.storage_offset()


class Offloader:
    """Hooks for saved tensors with bounds on what is on its way.

    Whole storages are moved, once each, so that views of one storage cost one copy. On a CUDA device copies run on
    streams of their own, from and to pinned memory. Between two streams memory is handed over by events that the
    program's stream waits for, never by `record_stream`, so that it is free for the next tensor at a moment that does
    not depend on timing. On a CPU it does the same in plain copies.
    """

    def __init__(self, device: Any, *, window_bytes: int, least_bytes: int, is_kept: Callable[[Any], bool]) -> None:
        """Make streams on ``device``; at most ``window_bytes`` are on the device on their way in each direction.

        Storages below ``least_bytes`` and tensors for which ``is_kept`` says so stay where they are.
        """
        self.device = device
        self.window_bytes = window_bytes
        self.least_bytes = least_bytes
        self.is_kept = is_kept
        self.streams = device.type == "cuda"
        self.out: Any = torch.cuda.Stream(device) if self.streams else None
        self.back: Any = torch.cuda.Stream(device) if self.streams else None
        self.bytes_out = 0
        """Bytes that went to the host, in all passes."""
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[_Saved]]] = {}
        self._leaving: deque[tuple[Any, Any, int]] = deque()
        self._leaving_bytes = 0
        # By their turn, oldest first; they are there as long as a graph holds them.
        self._saved: dict[int, weakref.ref[_Saved]] = {}
        self._turn = 0
        self.bytes_ahead = 0
        """Bytes on the device, or on their way to it, that backward has not asked for yet."""

    def hooks(self) -> Any:
        """The context in which tensors are saved to the host."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Any) -> Any:
        if tensor.device != self.device or tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < max(self.least_bytes, 1) or self.is_kept(tensor):
            return tensor
        key = (storage._cdata, tensor._version)
        known = self._known.get(key)
        saved = known[1]() if known is not None and not known[0].expired() else None
        if saved is None:
            saved = self._leave(storage)
            self._known[key] = (StorageWeakRef(storage), weakref.ref(saved))
        return _View(saved, tensor)

    def _leave(self, storage: Any) -> _Saved:
        size = storage.nbytes()
        source = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self.streams)
        left = None
        if self.streams:
            # The oldest copies have to be done before more is on its way. The program's stream waits, not the program.
            while self._leaving and self._leaving_bytes + size > self.window_bytes:
                self._release_oldest()
            now = torch.cuda.current_stream(self.device)
            self.out.wait_stream(now)
            with torch.cuda.stream(self.out):
                host.copy_(source, non_blocking=True)
                left = self.out.record_event()
            self._leaving.append((left, source, size))
            self._leaving_bytes += size
        else:
            host.copy_(source)
        self.bytes_out += size
        saved = _Saved(host, left, self._turn)
        self._saved[self._turn] = weakref.ref(saved)
        self._turn += 1
        if self._turn % 1024 == 0:
            self._forget()
        return saved

    def _release_oldest(self) -> None:
        left, _, size = self._leaving.popleft()
        torch.cuda.current_stream(self.device).wait_event(left)
        self._leaving_bytes -= size

    def _unpack(self, kept: Any) -> Any:
        if not isinstance(kept, _View):
            return kept
        # Whatever still leaves is held no longer than until backward begins.
        while self._leaving:
            self._release_oldest()
        saved = kept.saved
        copy = saved.device_copy
        if copy is None:
            copy = self._fetch(saved)
        saved.take()
        tensor = torch.empty(0, dtype=kept.dtype, device=self.device)
        tensor.set_(copy.untyped_storage(), kept.offset, kept.shape, kept.stride)
        self._fetch_ahead(saved.place)
        return tensor

    def _fetch(self, saved: _Saved) -> Any:
        if not self.streams:
            saved.device_copy = saved.host.clone()
            return saved.device_copy
        # Taken on the program's stream, so that it is freed there as any other tensor.
        now = torch.cuda.current_stream(self.device)
        saved.device_copy = torch.empty(saved.bytes, dtype=torch.uint8, device=self.device)
        self.back.wait_stream(now)
        self.back.wait_event(saved.left)
        with torch.cuda.stream(self.back):
            saved.device_copy.copy_(saved.host, non_blocking=True)
            saved.arrived = self.back.record_event()
        return saved.device_copy

    def _fetch_ahead(self, place: int) -> None:
        """Start the copies that backward will ask for next, within the window."""
        if not self.streams:
            return
        for turn in range(place - 1, max(place - 65, -1), -1):
            saved = self._saved.get(turn, _nothing)()
            if saved is None or saved.device_copy is not None:
                continue
            if self.bytes_ahead + saved.bytes > self.window_bytes:
                return
            self._fetch(saved)
            saved.ahead = self
            self.bytes_ahead += saved.bytes

    def _forget(self) -> None:
        """Drop what no graph holds any more."""
        self._saved = {turn: saved for turn, saved in self._saved.items() if saved() is not None}
        self._known = {key: known for key, known in self._known.items() if known[1]() is not None}


def _nothing() -> None:
    return None


# Others (sharded, quantized, nested) are more than their storage. Traces have fake tensors, moved as in a run.
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
