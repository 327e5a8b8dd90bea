"""The chain of blocks that a model consists of, what comes before it and what behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError

__all__ = ["Chain", "chain_of", "cut_points"]

WHAT = "pipeline parallelism"


class Chain:
    """The longest list of alike blocks of a model."""

    def __init__(self, model: Any, name: str, holder: Any) -> None:
        """Take over the list, a `ModuleList` or `Sequential` of that name in its model."""
        self.model = model
        self.name = name
        self.holder = holder
        self.blocks = list(holder)
        self.names = [f"{name}.{index}" if name else str(index) for index in range(len(self.blocks))]

    def before(self) -> list[tuple[str, Any]]:
        """Modules that are registered before the chain: by custom they run before it."""
        return self._beside()[0]

    def behind(self) -> list[tuple[str, Any]]:
        """Modules that are registered after the chain."""
        return self._beside()[1]

    def _beside(self) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
        found: tuple[list[tuple[str, Any]], list[tuple[str, Any]]] = ([], [])
        if not self.name:
            # The model is the chain: there is nothing beside it.
            return found
        behind = False
        for name, module in self.model.named_modules(remove_duplicate=False):
            if name == self.name:
                behind = True
            elif not name or self.name.startswith(f"{name}.") or name.startswith(f"{self.name}."):
                continue
            else:
                found[behind].append((name, module))
        return found

    def tied(self) -> list[Any]:
        """Parameters that what comes before and what comes behind share."""
        before = {id(one) for _, module in self.before() for one in module.parameters(recurse=False)}
        shared: dict[int, Any] = {}
        for _, module in self.behind():
            for one in module.parameters(recurse=False):
                if id(one) in before:
                    shared[id(one)] = one
        return list(shared.values())

    def weights(self) -> tuple[list[int], int, int]:
        """Parameter bytes of each block, of what comes before, and of what comes behind."""
        return (
            [_bytes(block.parameters()) for block in self.blocks],
            sum(_bytes(module.parameters(recurse=False)) for _, module in self.before()),
            sum(_bytes(module.parameters(recurse=False)) for _, module in self.behind()),
        )


def _bytes(parameters: Any) -> int:
    return sum(one.numel() * one.element_size() for one in parameters)


def chain_of(model: Any) -> Chain:
    """The list of blocks with most parameters."""
    best: tuple[int, Chain] | None = None
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) or len(module) < 2:
            continue
        kinds = {type(block) for block in module}
        if len(kinds) > 1:
            continue
        size = _bytes(module.parameters())
        if best is None or size > best[0]:
            best = (size, Chain(model, name, module))
    if best is None or best[0] == 0:
        raise LeverError(
            f"{WHAT}: {type(model).__name__} has no list of alike blocks to cut",
            'Use {"form": "fsdp2"}, which needs none.',
        )
    return best[1]


def cut_points(chain: Chain, stages: Sequence[Any] | None, gpus: int) -> list[int]:
    """The number of the first block of each stage: as the plan says, else so that bytes are even."""
    count = len(chain.blocks)
    if count < gpus:
        raise LeverError(f"{WHAT}: {count} blocks cannot be {gpus} stages", "Use fewer GPUs.")
    if not stages:
        return _even(chain, gpus)
    starts: list[int] = []
    if all(isinstance(stage, int) for stage in stages) and len(stages) == gpus:
        starts = [sum(stages[:index]) for index in range(gpus)]
        good = sum(stages) == count and min(stages) > 0
    else:
        # The first block of each stage by name, or all blocks of each.
        named = [stage[0] if isinstance(stage, (list, tuple)) and stage else stage for stage in stages]
        places = [chain.names.index(name) for name in named if name in chain.names]
        starts = places if places[:1] == [0] else [0, *places]
        good = len(starts) == gpus and starts == sorted(set(starts)) and len(places) in (len(named), len(named) - 1)
    if not good:
        raise LeverError(
            f"{WHAT}: stages `{stages}` do not cut the {count} blocks of `{chain.name}` into {gpus}",
            f"Give {gpus} numbers of blocks that add up to {count}, or the names of the first block of each stage.",
        )
    return starts


def _even(chain: Chain, gpus: int) -> list[int]:
    """The cut whose largest stage has the fewest bytes; exact, by trying bounds."""
    weights, before, behind = chain.weights()
    costs = list(weights)
    costs[0] += before
    costs[-1] += behind
    low, high = max(costs), sum(costs)
    best = _within(costs, gpus, high)
    while low < high:
        middle = (low + high) // 2
        found = _within(costs, gpus, middle)
        if found is None:
            low = middle + 1
        else:
            best, high = found, middle
    found = _within(costs, gpus, low)
    assert found is not None or best is not None
    return found if found is not None else best or []


def _within(costs: list[int], gpus: int, bound: int) -> list[int] | None:
    """Cut so that no stage is above the bound, with at least one block each; None if that takes more stages."""
    starts, size = [0], 0
    for index, cost in enumerate(costs):
        left = len(costs) - index
        # The stages that are still to come need a block each.
        must = left <= gpus - len(starts)
        if index > starts[-1] and (size + cost > bound or must):
            starts.append(index)
            size = 0
        size += cost
        if size > bound:
            return None
    return starts if len(starts) == gpus else None
