"""Which storages are new, what they are, and what can be reached from a value."""

from __future__ import annotations

import gc
import time
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuheap._autograd import walk_graphs
from gpuheap._objects import instance_dict, is_instance
from gpuheap._tensors import Storage, gradient_of, in_graph, live_tensors, storages_of
from gpuheap._tracker import weak_storage

__all__ = ["Census", "census", "reachable_storages"]

_GRAPH_SECONDS = 1.0
_MAX_REACHED = 200_000
# Whoever reaches one of these reaches the whole program.
_NOT_FOLLOWED = (types.ModuleType, types.FrameType, types.TracebackType, type)


@dataclass(slots=True)
class Census:
    """All storages at one moment, by key."""

    storages: dict[int, Storage]
    weak: dict[int, Any]
    """While one of these lives no other storage can have its key."""
    saved: set[int]
    """Keys of those that no tensor in Python has: autograd alone keeps them."""


def census(torch: Any, wanted: Callable[[str], bool]) -> Census:
    """Counts the storages on the wanted devices: behind live tensors, and saved in the graphs of those."""
    found = Census({}, {}, set())
    tensors = live_tensors(torch)
    for tensor in tensors:
        _count(torch, tensor, wanted, found)
    inside = [tensor for tensor in tensors if in_graph(tensor)]
    if inside:
        graphs = walk_graphs(torch, inside, time.monotonic() + _GRAPH_SECONDS)
        for tensor in graphs.saved_tensors(torch):
            found.saved.update(_count(torch, tensor, wanted, found))
    return found


def _count(torch: Any, tensor: Any, wanted: Callable[[str], bool], found: Census) -> list[int]:
    new = []
    for storage in storages_of(torch, tensor):
        if storage.key not in found.storages and storage.bytes and wanted(storage.device):
            weak = weak_storage(torch, tensor, storage.key)
            if weak is not None:
                found.storages[storage.key] = storage
                found.weak[storage.key] = weak
                new.append(storage.key)
    return new


def _parts(value: Any) -> list[Any]:
    if type(value) is types.FunctionType:
        # Not its globals.
        return [value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__]
    return gc.get_referents(value)


def reachable_storages(torch: Any, value: Any) -> dict[int, Any]:
    """Weak references, by key, to the storages that can be reached from a value: through containers, attributes,
    closures, views, gradients and the graph of a tensor."""
    reached: dict[int, Any] = {}
    tensors: list[Any] = []
    seen: dict[int, Any] = {}
    queue: deque[Any] = deque([value])
    while queue and len(seen) < _MAX_REACHED:
        one = queue.popleft()
        if one is None or id(one) in seen or any(is_instance(one, kind) for kind in _NOT_FOLLOWED):
            continue
        seen[id(one)] = one
        if is_instance(one, torch.Tensor):
            tensors.append(one)
            queue.append(gradient_of(one))
        queue.extend(_parts(one))
    with_graph = [tensor for tensor in tensors if in_graph(tensor)]
    if with_graph:
        graphs = walk_graphs(torch, with_graph, time.monotonic() + _GRAPH_SECONDS)
        tensors += graphs.saved_tensors(torch)
        # What a function of the program has stored on its `ctx`.
        for node in graphs.nodes:
            tensors += [one for one in (instance_dict(node) or {}).values() if is_instance(one, torch.Tensor)]
    for tensor in tensors:
        for storage in storages_of(torch, tensor):
            weak = weak_storage(torch, tensor, storage.key)
            if weak is not None:
                reached[storage.key] = weak
    return reached
