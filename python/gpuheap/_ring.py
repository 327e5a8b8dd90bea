"""Batches through a bounded ring of buffers to a device, ahead of the one who uses them.

A thread takes batches from the loader, puts them into pinned host memory and lets a side stream copy each into one
block of device memory, a slot; there are ``depth`` of them. The user's stream waits for the copy before the batch is
handed out. When the last tensor of a batch is dropped, an event on the user's stream marks the end of its use, and the
side stream waits for that before the slot is written again. So nothing is overwritten while it is read, nobody
waits on the host, and a batch that was dropped costs nothing.

A batch that the program keeps, as a whole or by an alias of one of its tensors, is given away: its memory is left to
the program and to PyTorch's allocator (``record_stream``), and the slot gets another.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from gpuheap._nested import map_leaves
from gpuheap._streams import Event, Layer, Stream

__all__ = ["Ring", "alias_count_works"]

# Bytes: what PyTorch's allocator aligns to.
_ALIGNMENT = 512


class _Leaf:
    """The place of a tensor that is on its way."""

    def __init__(self, tensor: Any, stride: tuple[int, ...], offset: int) -> None:
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.stride = stride
        self.offset = offset
        self.source: Any = tensor
        self.bytes = tensor.numel() * tensor.element_size()


class _Moved:
    """What can only move itself. That happens on the user's stream."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Slot:
    """Device memory for one batch at a time."""

    def __init__(self, layer: Layer) -> None:
        self.arena: Any = None
        self.storage: Any = None
        self.own_count = 0
        # The copy into it is done.
        self.copied: Event = layer.event()
        # Its use is done.
        self.consumed: Event = layer.event()
        # Pinned tensors that the copy reads.
        self.sources: list[Any] = []
        self.user: Stream | None = None
        # One for each tensor that was handed out and lives.
        self.watched: set[weakref.ref[Any]] = set()

    def fit(self, count: int, layer: Layer, side: Stream) -> None:
        if self.arena is None or self.arena.numel() < count:
            # The old memory first, so that never both are held. The side stream has waited for its last use.
            self.arena = self.storage = None
            self.arena = layer.device_bytes(count, side)
            self.storage = self.arena.untyped_storage()
            self.own_count = _count(layer.torch, self.storage)

    def give_away(self) -> None:
        """Leave the memory to those who hold it: the allocator sees to it that it is not used again too early."""
        self.watched.clear()
        if self.arena is not None and self.user is not None:
            self.arena.record_stream(self.user)
        self.arena = self.storage = self.user = None


class _Staging:
    """Pinned memory, and the end of the copy from it."""

    def __init__(self, layer: Layer) -> None:
        self.memory: Any = None
        self.event: Event = layer.event()
        self.is_read = False
        self.layer = layer

    def wait(self) -> None:
        if self.is_read:
            self.event.synchronize()
            self.is_read = False

    def fit(self, count: int) -> Any:
        self.wait()
        if self.memory is None or self.memory.numel() < count:
            self.memory = None
            self.memory = self.layer.host_bytes(count)
        return self.memory


class Ring:
    """One pass over a loader."""

    def __init__(self, batches: Iterator[Any], layer: Layer, depth: int) -> None:
        """Start to load."""
        self._layer = layer
        self._side = layer.side_stream()
        # Callbacks come whenever a tensor is dropped, also while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._free = deque(_Slot(layer) for _ in range(depth))
        self._lent: deque[_Slot] = deque()
        self._ready: deque[tuple[Any, _Slot | None, BaseException | None]] = deque()
        self._extra = _count_while_dropped(layer.torch)
        self._is_waiting = False
        self._stopped = False
        self._thread = threading.Thread(target=self._load, args=(batches, depth), name="gpuheap-prefetch", daemon=True)
        self._thread.start()

    def next(self) -> Any:
        """Return the next batch, or raise what the loader raised, `StopIteration` at the end."""
        with self._changed:
            self._is_waiting = True
            self._changed.notify_all()
            while not self._ready:
                if self._stopped:
                    raise StopIteration
                self._changed.wait()
            self._is_waiting = False
            batch, slot, error = self._ready.popleft()
        if slot is None:
            self.close()
            try:
                raise StopIteration if error is None else error
            finally:
                # It holds this frame, which must not hold it.
                del error
        return self._hand_out(batch, slot)

    def close(self) -> None:
        """Stop loading and release every buffer. Waits for the loader if it is at work."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            slots = [slot for _, slot, _ in self._ready if slot is not None]
            self._ready.clear()
            lent, self._lent = self._lent, deque()
            self._free.clear()
        if slots:
            # Copies may be under way to and from what is about to be released.
            self._side.synchronize()
        for slot in lent:
            slot.give_away()

    # The user's side.

    def _hand_out(self, batch: Any, slot: _Slot) -> Any:
        user = self._layer.current_stream()
        user.wait_event(slot.copied)
        slot.user = user
        torch, device = self._layer.torch, self._layer.device
        made: list[Any] = []

        def change(leaf: Any) -> Any:
            if isinstance(leaf, _Leaf):
                tensor = torch.empty(0, dtype=leaf.dtype, device=device)
                # Not a view: each tensor counts its own changes.
                tensor.set_(slot.storage, leaf.offset // tensor.element_size(), leaf.shape, leaf.stride)
                made.append(tensor)
                return tensor
            return _move(leaf.value, device) if isinstance(leaf, _Moved) else leaf

        result = map_leaves(batch, change)
        ring = weakref.ref(self)

        def dropped(reference: weakref.ref[Any]) -> None:
            slot.watched.discard(reference)
            if not slot.watched and (found := ring()) is not None:
                found._returned(slot)

        with self._changed:
            self._lent.append(slot)
            slot.watched = {weakref.ref(tensor, dropped) for tensor in made}
            if not made:
                self._returned(slot)
        return result

    def _returned(self, slot: _Slot) -> None:
        """The last tensor of the slot's batch is being dropped."""
        with self._changed:
            if slot not in self._lent or slot.user is None:
                return
            self._lent.remove(slot)
            if slot.storage is not None and _count(self._layer.torch, slot.storage) > slot.own_count + self._extra:
                slot.give_away()
            else:
                slot.consumed.record(slot.user)
                # At once, so that the memory may also be released.
                self._side.wait_event(slot.consumed)
                slot.user = None
            if not self._stopped:
                self._free.append(slot)
                self._changed.notify_all()

    # The loader's side, in the thread.

    def _load(self, batches: Iterator[Any], depth: int) -> None:
        staging = deque(_Staging(self._layer) for _ in range(depth))
        error = None
        self._layer.enter_thread()
        try:
            while not self._stopped:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                if not self._send(batch, staging):
                    break
                del batch
        except BaseException as raised:
            error = raised
        if self._stopped:
            # Only a loader that is left early needs to hear of it; there is nobody to tell of what goes wrong.
            with suppress(Exception):
                getattr(batches, "close", _nothing)()
        with self._changed:
            self._ready.append((None, None, error))
            self._changed.notify_all()
        # What cannot be waited for is broken as a whole, and the program has been told.
        with suppress(Exception):
            for memory in staging:
                memory.wait()

    def _send(self, batch: Any, staging: deque[_Staging]) -> bool:
        """Bring a batch on its way; `False` if nobody wants it any more."""
        leaves: list[_Leaf] = []
        structure = map_leaves(batch, lambda leaf: self._plan(leaf, leaves))
        staged = [leaf for leaf in leaves if not self._is_direct(leaf)]
        direct = [leaf for leaf in leaves if self._is_direct(leaf)]
        total = 0
        for leaf in staged + direct:
            leaf.offset = total
            total += -(-leaf.bytes // _ALIGNMENT) * _ALIGNMENT
        end = direct[0].offset if direct else total
        host = None
        if staged:
            staging.rotate(-1)
            host = staging[0].fit(end)
            for leaf in staged:
                _part(host, leaf).copy_(leaf.source)
                leaf.source = None
        slot = self._slot()
        if slot is None:
            return False
        if total:
            slot.fit(total, self._layer, self._side)
        if host is not None:
            self._layer.copy(slot.arena[:end], host[:end], self._side)
            staging[0].event.record(self._side)
            staging[0].is_read = True
        for leaf in direct:
            self._layer.copy(_part(slot.arena, leaf), leaf.source, self._side)
        slot.copied.record(self._side)
        slot.sources = [leaf.source for leaf in direct]
        for leaf in direct:
            leaf.source = None
        with self._changed:
            self._ready.append((structure, slot, None))
            self._changed.notify_all()
        return True

    def _slot(self) -> _Slot | None:
        """Wait for a free slot."""
        with self._changed:
            while not self._stopped:
                if self._free:
                    return self._free.popleft()
                if self._is_waiting and not self._ready and self._lent:
                    # The program keeps its batches and asks for more.
                    slot = self._lent.popleft()
                    slot.give_away()
                    return slot
                self._changed.wait()
        return None

    def _plan(self, value: Any, leaves: list[_Leaf]) -> Any:
        torch = self._layer.torch
        if not isinstance(value, torch.Tensor):
            return _Moved(value) if callable(getattr(value, "to", None)) else value
        if value.device == self._layer.device and self._layer.device.type != "cpu":
            return value
        plain = type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"
        if not plain or value.requires_grad or value.is_conj() or value.is_neg() or value.is_quantized:
            return _Moved(value)
        if value.numel() == 0:
            return _Moved(value)
        # Keeps `channels_last` and the like.
        stride = torch.empty_like(value, device="meta").stride()
        leaf = _Leaf(value, stride, 0)
        leaves.append(leaf)
        return leaf

    def _is_direct(self, leaf: _Leaf) -> bool:
        return leaf.source.stride() == leaf.stride and self._layer.is_pinned(leaf.source)


def _nothing() -> None:
    pass


def _part(memory: Any, leaf: _Leaf) -> Any:
    """The leaf's place in a buffer."""
    return memory[leaf.offset : leaf.offset + leaf.bytes].view(leaf.dtype).as_strided(leaf.shape, leaf.stride)


def _move(value: Any, device: Any) -> Any:
    try:
        return value.to(device, non_blocking=True)
    except TypeError:
        return value.to(device)


def _count(torch: Any, storage: Any) -> int:
    """How many tensors and storages hold the memory."""
    count: Callable[[int], int] = torch._C._storage_Use_Count
    return count(storage._cdata)


def alias_count_works(torch: Any) -> bool:
    """Whether this PyTorch tells how many hold a tensor's memory (since 2.1)."""
    return hasattr(torch._C, "_storage_Use_Count")


def _count_while_dropped(torch: Any) -> int:
    """By how much a tensor counts while it is being dropped, which versions of PyTorch may do differently."""
    tensor = torch.empty(1)
    storage = tensor.untyped_storage()
    seen: list[int] = []
    reference = weakref.ref(tensor, lambda _: seen.append(_count(torch, storage)))
    del tensor
    after = _count(torch, storage)
    del reference
    return seen[0] - after if seen else 0
