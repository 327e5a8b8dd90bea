"""The search for holders: breadth first from the target back to roots, over `gc.get_referrers` in batches.

A look at all references of a heap of two million objects costs 30 ms and more, depending on its shape, and 1.5 ms for
each object that is asked about together (measured; `docs/results/holders.md`). A map of all references made in Python
costs 4.6 s there, so the search goes backwards and asks for one level at a time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from gpuheap._autograd import SavedBy
from gpuheap._frames import Call, handled_exceptions, is_own_code, local_items, running_calls
from gpuheap._objects import is_instance, module_dict_names
from gpuheap._world import Link, World

__all__ = ["Found", "Node", "Root", "Search"]

_BATCH = 32
_WIDTH = 512
_NAMES_PER_ROOT = 3


@dataclass(frozen=True, eq=False, slots=True)
class Root:
    """Where a path begins: something that lives by itself."""

    kind: str
    """`global`, `local`, `class`, `exception`, `cycle` or `unseen`."""
    name: str = ""
    """The variable, for a global or a local."""
    module: str = ""
    """The module, for a global."""
    call: Call | None = None
    """The running call, for a local."""
    holder: Any = None
    """The class or the namespace."""


class Node:
    """An object on a path, and the next one towards the target."""

    __slots__ = ("depth", "held", "link", "value")

    def __init__(self, value: Any, held: Node | None, link: Link | None) -> None:
        self.value = value
        self.held = held
        self.link = link
        self.depth: int = 0 if held is None else held.depth + 1


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """A path: a root, and the node that it holds."""

    root: Root
    node: Node


class Search:
    """One search. Everything that it holds goes with it; no method returns an object of the program."""

    def __init__(self, deadline: float, depth: int, limit: int) -> None:
        self.found: list[Found] = []
        self.cycles: list[Found] = []
        self.unseen: list[Found] = []
        self.notes: list[str] = []
        self.complete = True
        self._deadline = deadline
        self._depth = depth
        self._limit = limit
        self._visited: dict[int, Node] = {}
        self._calls = running_calls()
        self._frames = {id(call.frame): call for call in self._calls}
        self._locals: dict[int, list[tuple[Call, str]]] = {}
        for call in self._calls:
            for name, value in local_items(call.frame):
                self._locals.setdefault(id(value), []).append((call, name))
        self._modules = module_dict_names()
        self._handled = {id(error) for error in handled_exceptions()}
        self._own: set[int] = set()
        self._world: World | None = None

    @property
    def held_by_calls(self) -> dict[int, list[tuple[Call, str]]]:
        """By identity: the local variables of running calls."""
        return self._locals

    def use(self, world: World) -> None:
        """Links of this world count as references."""
        self._world = world

    def run(self, targets: Iterable[Node], ignore: Iterable[Any] = ()) -> None:
        """Searches until `limit` paths are found, nothing is left, or the time is up."""
        frontier = []
        for node in targets:
            if id(node.value) not in self._visited:
                self._visited[id(node.value)] = node
                frontier.append(node)
        # All that we hold ourselves, as none of it is an answer.
        self._own.update(id(value) for value in ignore)
        self._own.update(map(id, (self, self.__dict__, self._visited, self._calls, self._frames, self._locals)))
        self._own.update(id(value) for value in (self._modules, self._handled, self._own, self.found, self.unseen))
        if self._world is not None:
            world = self._world
            self._own.update(map(id, (world, world.__dict__, *world.__dict__.values())))
            for table in (world.by_storage, world._views, world._grads, world._by_untyped):
                self._own.update(map(id, table.values()))
        while frontier:
            if frontier[0].depth >= self._depth:
                self._stop(f"paths longer than {self._depth} objects were not followed")
                return
            if len(frontier) > _WIDTH:
                self._stop(f"only the first {_WIDTH} of {len(frontier)} holders at one distance were followed")
                del frontier[_WIDTH:]
            following: list[Node] = []
            for start in range(0, len(frontier), _BATCH):
                if time.monotonic() > self._deadline:
                    self._stop("the time was up")
                    return
                self._expand(frontier[start : start + _BATCH], following, frontier)
            if len(self.found) >= self._limit:
                if following:
                    self._stop(f"more than {self._limit} holders")
                return
            frontier = following

    def _stop(self, reason: str) -> None:
        self.complete = False
        self.notes.append(reason)

    def _expand(self, batch: list[Node], following: list[Node], frontier: list[Node]) -> None:
        asked: dict[int, Node] = {}
        for node in batch:
            if not self._end_at_call(node):
                asked[id(node.value)] = node
        held = {identity: identity in self._locals for identity in asked}
        for node in batch:
            # What a variable holds needs no graph to hold it, too.
            if self._world is None or id(node.value) not in asked or (node.depth and held[id(node.value)]):
                continue
            for link in self._world.links_to(node.value):
                held[id(node.value)] = True
                self._add(link.holder, node, link, following)
        # A tuple, as it becomes the arguments itself: since 3.13 they are found as a referrer of their own.
        values = tuple(node.value for node in asked.values())
        if values:
            own = {id(values), id(batch), id(following), id(frontier), id(asked)}
            referrers = gc.get_referrers(*values)
            for referrer in referrers:
                if id(referrer) in own or id(referrer) in self._own or self._is_ours(referrer):
                    continue
                for identity in asked.keys() & set(map(id, gc.get_referents(referrer))):
                    held_node = asked[identity]
                    held[identity] = True
                    known = self._visited.get(id(referrer))
                    if known is not None:
                        self._close(known, held_node)
                    elif not self._end_at_root(referrer, held_node):
                        self._add(referrer, held_node, None, following)
            del referrers
        for identity, node in asked.items():
            if not held[identity]:
                self.unseen.append(Found(Root("unseen"), node))

    def _add(self, value: Any, held: Node, link: Link | None, following: list[Node]) -> None:
        if id(value) not in self._visited and id(value) not in self._own:
            node = Node(value, held, link)
            self._visited[id(value)] = node
            following.append(node)

    def _close(self, holder: Node, held: Node) -> None:
        # The holder is on the path from `held` to the target, or beside it: only the first makes a cycle.
        step: Node | None = held
        while step is not None:
            if step is holder:
                if len(self.cycles) < self._limit:
                    self.cycles.append(Found(Root("cycle"), held))
                return
            step = step.held

    def _end_at_call(self, node: Node) -> bool:
        """Roots that no reference of the heap shows: locals of running calls, exceptions that are being handled.

        Whether the search ends there: a local variable may have other holders, too.
        """
        for call, name in self._locals.get(id(node.value), ())[:_NAMES_PER_ROOT]:
            self.found.append(Found(Root("local", name=name, call=call), node))
        if id(node.value) in self._handled:
            self.found.append(Found(Root("exception"), node))
            return True
        # A running frame is a root itself; its locals are known.
        return id(node.value) in self._frames

    def _end_at_root(self, referrer: Any, held: Node) -> bool:
        kind = type(referrer)
        if kind is dict:
            module = self._modules.get(id(referrer))
            if module is None and "__builtins__" in referrer and type(referrer.get("__name__")) is str:
                # The namespace of `exec`, or of a module that is no longer listed.
                module = referrer["__name__"]
            if module is None:
                return False
            names = [name for name, value in list(referrer.items()) if value is held.value]
            for name in names[:_NAMES_PER_ROOT]:
                self.found.append(Found(Root("global", name=str(name), module=module, holder=referrer), held))
            return True
        if is_instance(referrer, type):
            self.found.append(Found(Root("class", holder=referrer), held))
            return True
        if is_instance(referrer, ModuleType):
            return True
        # A running frame's locals are known already (before Python 3.11 it is a referrer of them, too).
        return id(referrer) in self._frames

    def _is_ours(self, referrer: Any) -> bool:
        kind = type(referrer)
        if kind in _OURS:
            return True
        if self._world is not None and self._world.is_own(referrer):
            return True
        return kind is FrameType and is_own_code(referrer.f_code)


_OURS = frozenset((Node, Link, Found, Root, Call, SavedBy))
