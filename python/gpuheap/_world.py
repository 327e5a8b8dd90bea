"""The links that the garbage collector does not see, because PyTorch keeps them in C++: by which live tensor is another
one kept, through a graph, a gradient, a view or the storage?"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuheap._autograd import Graphs, SavedBy, others_reaching, walk_graphs
from gpuheap._objects import is_instance, mro
from gpuheap._tensors import (
    Storage,
    gradient_of,
    in_graph,
    live_tensors,
    needed_bytes,
    plain,
    storage_of_untyped,
    storages_of,
)

__all__ = ["Link", "World"]

_CHUNK = 200_000
# Of so many tensors with graphs all are named that keep something; of more the nearest alone.
_MAX_SOURCES = 8


@dataclass(frozen=True, eq=False, slots=True)
class Link:
    """Why `holder` keeps something alive although no Python reference leads there."""

    holder: Any
    kind: str
    """`saved`, `variable`, `graph`, `grad`, `view` or `storage`."""
    node: str = ""
    """The autograd node, for the first three."""
    steps: int = 0
    """Its distance from the holder's `grad_fn`."""


class World:
    """All live tensors, looked at once; the graphs behind them when first asked for."""

    def __init__(self, torch: Any, deadline: float, held_by_calls: Collection[int]) -> None:
        self.torch = torch
        self.notes: list[str] = []
        self._deadline = deadline
        self._held_by_calls = held_by_calls
        self._graphs: Graphs | None = None
        self._sources: list[Any] = []
        self._sources_without: set[int] = set()
        objects = gc.get_objects()
        # Before any storage is touched: asking a tensor for its storage makes an object of this kind.
        untyped = getattr(torch, "UntypedStorage", None)
        kinds = {kind for kind in set(map(type, objects)) if untyped is not None and untyped in mro(kind)}
        self._untyped = [value for value in objects if type(value) in kinds]
        self.tensors = live_tensors(torch, objects)
        del objects
        self.by_storage: dict[int, list[Any]] = {}
        self.storages: dict[int, Storage] = {}
        self._views: dict[int, list[Any]] = {}
        self._grads: dict[int, list[Any]] = {}
        with plain(torch):
            for tensor in self.tensors:
                for storage in storages_of(torch, tensor):
                    self.by_storage.setdefault(storage.key, []).append(tensor)
                    self.storages[storage.key] = storage
                self._look_at(tensor)
        self._by_untyped: dict[int, list[Any]] = {}
        for value in self._untyped:
            found = storage_of_untyped(torch, value)
            if found is not None:
                self._by_untyped.setdefault(found.key, []).append(value)
                self.storages[found.key] = found

    def _look_at(self, tensor: Any) -> None:
        gradient = gradient_of(tensor)
        if gradient is not None:
            self._grads.setdefault(id(gradient), []).append(tensor)
        try:
            if tensor._is_view():
                self._views.setdefault(id(tensor._base), []).append(tensor)
        except Exception:  # a subclass in the middle of its construction, say
            return

    def owner_of_gradient(self, tensor: Any) -> Any | None:
        """The tensor of which `tensor` is the gradient."""
        owners = self._grads.get(id(tensor))
        return owners[0] if owners else None

    def is_view_of(self, tensor: Any, base: Any) -> bool:
        """Whether `tensor` was made as a view of the very object `base`."""
        return any(view is tensor for view in self._views.get(id(base), ()))

    def at_address(self, address: int) -> Storage | None:
        """The storage whose memory contains `address`: of a live tensor, or of one that only a graph has saved."""
        found = _containing(self.storages.values(), address)
        if found is None:
            saved = self.graphs().saved_tensors(self.torch)
            storages = [storage for tensor in saved for storage in storages_of(self.torch, tensor)]
            found = _containing(storages, address)
        return found

    def on_storage(self, key: int) -> list[Any]:
        """All tensors (and bare storages) on one storage."""
        return [*self.by_storage.get(key, ()), *self._by_untyped.get(key, ())]

    def is_own(self, value: Any) -> bool:
        """Whether `value` is a list in which the graphs' nodes are held."""
        return self._graphs is not None and (value is self._graphs.nodes or value is self._sources)

    def exclude(self, targets: list[Any]) -> None:
        """Graphs of these are not walked: that a tensor's own graph saved it is no answer to who keeps it."""
        self._sources_without = {id(target) for target in targets}

    def _held_in_python(self, candidates: list[Any]) -> list[Any]:
        # An activation that only a graph keeps is no answer either, as one would have to ask on. All references of the
        # heap at once, in C: a tenth of a second per million objects.
        wanted = {id(candidate) for candidate in candidates}
        held = wanted.intersection(self._held_by_calls)
        own = {id(self.tensors), id(candidates), id(self._untyped)}
        own.update(id(part) for part in (*self.by_storage.values(), *self._views.values(), *self._grads.values()))
        objects = gc.get_objects()
        for start in range(0, len(objects), _CHUNK):
            chunk = [value for value in objects[start : start + _CHUNK] if id(value) not in own]
            held.update(wanted.intersection(map(id, gc.get_referents(*chunk))))
            if time.monotonic() > self._deadline:
                return candidates
        return [candidate for candidate in candidates if id(candidate) in held]

    def graphs(self) -> Graphs:
        """The graphs behind all tensors that something in Python holds."""
        if self._graphs is None:
            without = self._sources_without
            sources = [tensor for tensor in self.tensors if id(tensor) not in without and in_graph(tensor)]
            if sources:
                sources = self._held_in_python(sources)
            self._sources = sources
            self._graphs = walk_graphs(self.torch, sources, self._deadline)
            if not self._graphs.complete:
                self.notes.append("the autograd graphs were not walked to the end")
            if self._graphs.opaque:
                self.notes.append(
                    "this version of PyTorch does not tell what autograd saved without unpacking it; left out"
                )
        return self._graphs

    def links_to_storage(self, storage: Storage) -> Iterator[Link]:
        """Who keeps this storage through a graph, whatever tensor it saved."""
        for saved in self.graphs().saved_storages.get(storage.key, ()):
            yield _link("saved", saved)
            if len(self._sources) <= _MAX_SOURCES:
                for other in others_reaching(saved, self._sources, self._deadline):
                    yield _link("saved", other)

    def links_to(self, value: Any) -> Iterator[Link]:
        """Who keeps this object in C++."""
        if is_instance(value, self.torch.Tensor):
            for owner in self._grads.get(id(value), ()):
                yield Link(owner, "grad")
            for view in self._views.get(id(value), ()):
                yield Link(view, "view")
            graphs = self.graphs()
            for saved in graphs.saved_objects.get(id(value), ()):
                yield _link("saved", saved)
            for saved in graphs.leaves.get(id(value), ()):
                yield _link("variable", saved)
        elif is_instance(value, self.torch._C._FunctionBase):
            owner = self.graphs().owners.get(id(value))
            if owner is not None:
                yield _link("graph", owner)
        elif self._graphs is not None or self.tensors:
            # What a pack hook returned instead of the tensor.
            for saved in self.graphs().saved_objects.get(id(value), ()):
                yield _link("saved", saved)

    def needed(self, tensor: Any) -> int:
        """How many bytes the tensor itself needs."""
        return needed_bytes(self.torch, tensor)


def _containing(storages: Iterable[Storage], address: int) -> Storage | None:
    for storage in storages:
        if storage.address and storage.address <= address < storage.address + max(storage.bytes, 1):
            return storage
    return None


def _link(kind: str, saved: SavedBy) -> Link:
    return Link(saved.tensor, kind, saved.node, saved.steps)
