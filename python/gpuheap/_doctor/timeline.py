"""What is alive at each step's end, since when, and what only a collection of reference cycles freed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuheap._autograd import walk_graphs
from gpuheap._doctor.heap import Heap
from gpuheap._doctor.operations import Operations
from gpuheap._doctor.sites import Stack
from gpuheap._doctor.trend import Window
from gpuheap._tensors import Storage, in_graph, storages_of
from gpuheap._tracker import weak_storage

__all__ = ["Alive", "Group", "Timeline"]

_GRAPH_SECONDS = 20.0
_NOWHERE = Stack(())


@dataclass(slots=True)
class Alive:
    """A storage since it was first seen."""

    storage: Storage
    weak: Any
    born: int
    """The step; -1 for what was there before the first."""
    stack: Stack = _NOWHERE
    backward: bool = False
    joined: int | None = None
    saved: bool = False
    """Whether a live graph has saved it for a backward pass."""
    needed: int = 0
    """The most bytes that any of its tensors needs of it."""
    batch: bool = False
    """Whether it came out of the data loader."""


@dataclass
class Group:
    """All that one line of the program has made."""

    stack: Stack
    curve: list[int] = field(default_factory=list)
    """Bytes alive at each step's end."""
    oldest_freed: int = 0
    """The largest age in steps at which something of it was freed, if that is known."""


@dataclass
class Timeline:
    """Looks at the live storages after each step."""

    torch: Any
    wanted: Callable[[str], bool]
    operations: Operations
    heap: Heap
    alive: dict[int, Alive] = field(default_factory=dict)
    groups: dict[object, Group] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    """Bytes alive at each step's end, after a collection."""
    counts: list[int] = field(default_factory=list)
    garbage: list[int] = field(default_factory=list)
    """Bytes that the collection at each step's end freed."""
    garbage_stacks: dict[Stack, int] = field(default_factory=dict)
    """Their bytes by the line that made them."""
    nodes: list[int] = field(default_factory=list)
    """Nodes of graphs that are alive at each step's end."""
    saved: list[int] = field(default_factory=list)
    """Bytes that live graphs have saved, at each step's end."""
    joined: dict[Stack, list[tuple[int, int, int]]] = field(default_factory=dict)
    """By line: step, key and bytes of a storage that was carried over and has grown."""
    device_levels: list[tuple[int, int]] = field(default_factory=list)
    """Allocated and reserved bytes of the accelerators at each step's end."""
    owned: frozenset[int] = frozenset()
    """Keys of the model's parameters, buffers and gradients and of its optimizers' state."""

    def begin(self) -> None:
        """What is alive now was there before."""
        self.look(-1)

    def end_step(self, step: int, owned: frozenset[int], batch: frozenset[int] = frozenset()) -> None:
        """Looks at what is alive at the end of a step.

        Args:
            step: its number.
            owned: keys of what is the model's.
            batch: keys of the storages of the batch that the loader gave for it.
        """
        self.owned = owned
        self.look(step)
        for key in batch & self.alive.keys():
            self.alive[key].batch = self.alive[key].born == step
        gc.collect()
        freed = [key for key, one in self.alive.items() if one.weak.expired()]
        garbage = 0
        for key in freed:
            one = self.alive.pop(key)
            garbage += one.storage.bytes
            self.garbage_stacks[one.stack] = self.garbage_stacks.get(one.stack, 0) + one.storage.bytes
        self.garbage.append(garbage)
        self.levels.append(sum(one.storage.bytes for one in self.alive.values()))
        self.counts.append(len(self.alive))
        self.saved.append(
            sum(
                one.storage.bytes for key, one in self.alive.items() if one.saved and one.born >= 0 and key not in owned
            )
        )
        sums: dict[object, int] = {}
        for key, one in self.alive.items():
            if one.born >= 0 and key not in owned:
                sums[group_of(one)] = sums.get(group_of(one), 0) + one.storage.bytes
                self.groups.setdefault(group_of(one), Group(one.stack))
        for name, group in self.groups.items():
            group.curve += [0] * (step - len(group.curve))
            group.curve.append(sums.get(name, 0))
        self.operations.forget_freed()
        self.operations.carried = frozenset(self.alive) - owned
        self._device()

    def look(self, step: int) -> None:
        """Takes down what is alive now, garbage included."""
        torch = self.torch
        tensors = self.heap.tensors()
        inside = [tensor for tensor in tensors if in_graph(tensor)]
        saved: list[Any] = []
        nodes = 0
        if inside:
            graphs = walk_graphs(torch, inside, time.monotonic() + _GRAPH_SECONDS)
            nodes = len(graphs.owners)
            saved = graphs.saved_tensors(torch)
        before = self.alive
        now: dict[int, Alive] = {}
        for position, tensor in enumerate(tensors + saved):
            for storage in storages_of(torch, tensor):
                if not storage.bytes or not self.wanted(storage.device):
                    continue
                known = now.get(storage.key)
                if known is None:
                    known = self._known(before, storage, tensor, step)
                    if known is None:
                        continue
                    known.saved = False
                    now[storage.key] = known
                known.saved = known.saved or position >= len(tensors)
                try:
                    needed = int(tensor.numel()) * int(tensor.element_size())
                except Exception:  # a layout without a size of its own
                    needed = storage.bytes
                known.needed = max(known.needed, min(needed, storage.bytes))
        for key, one in before.items():
            if key not in now or now[key] is not one:
                group = self.groups.get(group_of(one))
                if group is not None and one.born >= 0 and step >= 0:
                    group.oldest_freed = max(group.oldest_freed, step - one.born)
        self.alive = now
        if step >= 0:
            del self.nodes[step:]
            self.nodes.append(nodes)

    def _known(self, before: dict[int, Alive], storage: Storage, tensor: Any, step: int) -> Alive | None:
        known = before.get(storage.key)
        if known is not None and not known.weak.expired():
            if storage.bytes > known.storage.bytes and storage.key not in self.owned:
                # Resized in place.
                self.joined.setdefault(known.stack, []).append((step, storage.key, storage.bytes))
            known.storage = storage
            return known
        weak = weak_storage(self.torch, tensor, storage.key)
        if weak is None:
            return None
        one = Alive(storage, weak, step)
        made = self.operations.made.get(storage.key)
        if made is not None and not made.weak.expired():
            one.stack, one.backward, one.joined = made.stack, made.backward, made.joined
            if made.joined is not None and step >= 0:
                self.joined.setdefault(made.stack, []).append((step, storage.key, storage.bytes))
        return one

    def _device(self) -> None:
        cuda = getattr(self.torch, "cuda", None)
        if cuda is None or not cuda.is_available() or not cuda.is_initialized():
            return
        devices = range(cuda.device_count())
        self.device_levels.append(
            (
                sum(int(cuda.memory_allocated(device)) for device in devices),
                sum(int(cuda.memory_reserved(device)) for device in devices),
            )
        )

    def survivors(self, window: Window) -> list[Alive]:
        """What was made in the judged steps and is alive."""
        return [one for key, one in self.alive.items() if one.born in window and key not in self.owned]


def group_of(one: Alive) -> object:
    """What tells the places apart: the innermost lines; without a line the size."""
    return one.stack.sites[:2] if one.stack.sites else one.storage.bytes
