"""What autograd keeps alive: graphs hang from `grad_fn` in C++, where the garbage collector cannot look.

The graphs of all given tensors are walked at once, breadth first, so that each node is known by the tensor that is
nearest to it. Saved tensors are read without unpacking them: unpacking runs hooks of the program, which may recompute a
checkpointed region or read a disk.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from gpuheap._objects import class_name, is_instance
from gpuheap._tensors import storages_of

__all__ = ["Graphs", "SavedBy", "others_reaching", "walk_graphs"]

_RAW = "_raw_saved_"


@dataclass(frozen=True, eq=False, slots=True)
class SavedBy:
    """A tensor that a graph keeps, and where."""

    tensor: Any
    """The tensor whose graph it is."""
    node: str
    """The node that saved it: `MulBackward0`."""
    steps: int
    """How many nodes lie between the tensor's `grad_fn` (0: the node itself) and the node that saved."""
    variable: bool
    """Not saved, but a leaf into which the node adds gradients."""
    at: Any = None
    """The node itself."""


class Graphs:
    """What a walk found."""

    __slots__ = ("complete", "leaves", "nodes", "opaque", "owners", "saved_objects", "saved_storages")

    def __init__(self) -> None:
        self.saved_storages: dict[int, list[SavedBy]] = {}
        """By the key of a storage: who saved a tensor on it."""
        self.saved_objects: dict[int, list[SavedBy]] = {}
        """By identity: who saved this very object (a tensor, or whatever a pack hook returned)."""
        self.leaves: dict[int, list[SavedBy]] = {}
        """By identity of a leaf: the node that adds into its gradient."""
        self.owners: dict[int, SavedBy] = {}
        """By identity of a node: the tensor from which it can be reached."""
        self.nodes: list[Any] = []
        """The nodes and what they keep, held so that identities stay valid."""
        self.complete = True
        """False if the time ran out."""
        self.opaque = False
        """True if this version of PyTorch does not tell what is saved without unpacking it."""

    def saved_tensors(self, torch: Any) -> list[Any]:
        """The tensors that the graphs keep: saved ones, and leaves."""
        return [value for value in self.nodes if is_instance(value, torch.Tensor)]


def _fields(node: Any, known: dict[type, tuple[str, ...]]) -> tuple[str, ...]:
    kind = type(node)
    names = known.get(kind)
    if names is None:
        names = tuple(name for name in dir(kind) if name.startswith(_RAW))
        known[kind] = names
    return names


def _saved_values(node: Any, names: tuple[str, ...], graphs: Graphs) -> list[Any]:
    values: list[Any] = []
    for name in names:
        try:
            saved = getattr(node, name)
        except Exception:  # freed by backward
            continue
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            if one is None:
                continue
            if not hasattr(type(one), "data"):
                graphs.opaque = True
                continue
            try:
                value = one.data
            except Exception:
                continue
            if value is not None:
                values.append(value)
    return values


def walk_graphs(torch: Any, tensors: list[Any], deadline: float) -> Graphs:
    """Walks the graphs behind `tensors` until all nodes are seen or `time.monotonic()` passes `deadline`."""
    graphs = Graphs()
    queue: deque[tuple[Any, int, Any]] = deque()
    for tensor in tensors:
        try:
            node = tensor.grad_fn
        except Exception:
            continue
        if node is not None:
            queue.append((node, 0, tensor))
    known: dict[type, tuple[str, ...]] = {}
    tensor_class = torch.Tensor
    while queue:
        node, steps, tensor = queue.popleft()
        if id(node) in graphs.owners:
            continue
        if len(graphs.nodes) % 256 == 0 and time.monotonic() > deadline:
            graphs.complete = False
            break
        name = node.name() if not is_instance(node, torch._C._FunctionBase) else class_name(type(node))
        graphs.owners[id(node)] = SavedBy(tensor, name, steps, variable=False)
        graphs.nodes.append(node)
        for value in _saved_values(node, _fields(node, known), graphs):
            by = SavedBy(tensor, name, steps, variable=False, at=node)
            graphs.saved_objects.setdefault(id(value), []).append(by)
            if is_instance(value, tensor_class):
                for storage in storages_of(torch, value):
                    graphs.saved_storages.setdefault(storage.key, []).append(by)
                # The tensor may exist for this look alone: its address could be someone else's in a moment.
                graphs.nodes.append(value)
        leaf = getattr(node, "variable", None) if name.endswith("AccumulateGrad") else None
        if leaf is not None:
            graphs.leaves.setdefault(id(leaf), []).append(SavedBy(tensor, name, steps, variable=True))
            graphs.nodes.append(leaf)
        for following, _ in node.next_functions:
            if following is not None and id(following) not in graphs.owners:
                queue.append((following, steps + 1, tensor))
    return graphs


def others_reaching(saved: SavedBy, tensors: list[Any], deadline: float) -> list[SavedBy]:
    """The other tensors from which the same node can be reached: `out` and `h` of one recurrent step, say."""
    found = []
    for tensor in tensors:
        steps = None if tensor is saved.tensor else _distance(tensor.grad_fn, saved.at, deadline)
        if steps is not None:
            found.append(SavedBy(tensor, saved.node, steps, saved.variable, saved.at))
    return found


def _distance(start: Any, goal: Any, deadline: float) -> int | None:
    seen = {id(start): start}
    level, steps = [start], 0
    while level and time.monotonic() < deadline:
        if any(node is goal for node in level):
            return steps
        following = []
        for node in level:
            for one, _ in node.next_functions:
                if one is not None and id(one) not in seen:
                    seen[id(one)] = one
                    following.append(one)
        level, steps = following, steps + 1
    return None
