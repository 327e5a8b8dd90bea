"""Graphs that are alive between the steps, and the tensors that they hang from."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from gpuheap._frames import local_items, running_calls
from gpuheap._tensors import gradient_of, in_graph, storages_of, tensor_text
from gpuheap._world import World

__all__ = ["Chain", "chains", "gradients_in_graph"]

_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Chain:
    """A live tensor, by what can be said about it without holding it, and its part of the graphs."""

    key: int
    address: int
    elements: int
    text: str
    nodes: int
    """The nodes that are nearer to this tensor than to any other."""


def chains(torch: Any) -> list[Chain]:
    """The live tensors with graphs that something in Python holds, the one with the most nodes first."""
    in_calls = {id(value) for call in running_calls() for _, value in local_items(call.frame)}
    world = World(torch, time.monotonic() + _SECONDS, in_calls)
    graphs = world.graphs()
    counts = Counter(id(by.tensor) for by in graphs.owners.values())
    found = []
    for tensor in {id(by.tensor): by.tensor for by in graphs.owners.values()}.values():
        storages = storages_of(torch, tensor)
        if storages:
            text = tensor_text(torch, tensor)
            elements = int(tensor.numel())
            found.append(Chain(storages[0].key, storages[0].address, elements, text, counts[id(tensor)]))
    return sorted(found, key=lambda one: -one.nodes)


def gradients_in_graph(torch: Any, parameters: list[Any]) -> list[Any]:
    """The parameters whose gradients have a graph themselves."""
    found = []
    for parameter in parameters:
        gradient = gradient_of(parameter)
        if gradient is not None and in_graph(gradient):
            found.append(parameter)
    return found
