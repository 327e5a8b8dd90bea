"""Graphs that are alive between the steps, and the tensors that they hang from."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.timeline import Timeline
from gpuheap._doctor.trend import Window
from gpuheap._frames import local_items, running_calls
from gpuheap._tensors import gradient_of, in_graph, storages_of, tensor_text
from gpuheap._world import World
from gpuheap.holders import holders

__all__ = ["Chain", "between_steps", "chains", "gradients_in_graph"]

_SECONDS = 20.0
_SHARE = 0.05


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


def between_steps(timeline: Timeline, steps: int, gradients: int, words: str | None) -> list[Finding]:
    """A graph that is alive at each step's end without growing.

    Args:
        timeline: what was seen.
        steps: how many steps were run.
        gradients: how many gradients have a graph.
        words: how backward passes were asked to keep their graphs.
    """
    saved = timeline.saved[Window(steps).first :]
    if len(saved) < 2 or not min(saved) or min(saved) < _SHARE * max(1, timeline.levels[-1]):
        return []
    one = max(
        (one for key, one in timeline.alive.items() if one.saved and one.born >= 0 and key not in timeline.owned),
        key=lambda one: one.storage.bytes,
        default=None,
    )
    held = [] if one is None or not one.storage.address else holders(one.storage.address, limit=3, budget=_SECONDS)
    evidence = [f"saved by graphs at each step's end: at least {bytes_text(min(saved))}"]
    if words:
        evidence.append(f"the graph was kept by {words}")
    if gradients:
        evidence.append(f"{gradients} gradients have a graph themselves: parameter, gradient, graph, parameter")
    return [
        Finding(
            kind="graph_between_steps",
            title=f"the graph of a step is alive when the step is over: {bytes_text(min(saved))}",
            bytes=min(saved),
            site=one.stack.sites[0] if one is not None and one.stack.sites else None,
            holders=tuple(holder.path for holder in held if holder.root != "unseen"),
            evidence=(*evidence, "while the next forward pass runs, two graphs are alive"),
            remedy="Let go of it: `.detach()` or `.item()` of what is kept, no `retain_graph=True` for the last "
            "backward pass, `torch.no_grad()` where nothing is trained, gradients set to None after "
            "`create_graph=True`.",
            confidence="medium",
        )
    ]
