"""What live tensors hold, by class and by holder, each storage once."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

from gpuheap._names import _table, live_modules
from gpuheap._objects import instance_dict, is_instance, mro
from gpuheap._tensors import gradient_of, in_graph, live_tensors, plain, storages_of, tensor_text

__all__ = ["CLASSES", "Large", "by_class", "groups_of"]

CLASSES: tuple[str, ...] = ("parameters", "gradients", "optimizer state", "buffers", "activations", "other tensors")
_UNNAMED = frozenset(("activations", "other tensors"))


@dataclass(frozen=True, slots=True)
class Large:
    """One storage by what can be said about it without holding it."""

    key: int
    address: int
    bytes: int
    device: str
    group: str
    text: str


def _optimizers(torch: Any) -> list[Any]:
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    if optimizer is None:
        return []
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if optimizer in mro(kind)}
    return [value for value in objects if type(value) in kinds]


def _tensors_in(torch: Any, value: Any, depth: int = 4) -> list[Any]:
    if is_instance(value, torch.Tensor):
        return [value]
    if depth == 0:
        return []
    parts: list[Any] = []
    if is_instance(value, dict):
        parts = list(dict.values(value))
    elif type(value) in (list, tuple):
        parts = list(value)
    return [tensor for part in parts for tensor in _tensors_in(torch, part, depth - 1)]


def groups_of(torch: Any, tensors: list[Any]) -> dict[int, str]:
    """The classes of live tensors by identity; what is missing is one of the `other tensors`.

    Args:
        torch: the module.
        tensors: the live tensors, which the caller holds for as long as it uses the answer.
    """
    groups: dict[int, str] = {}
    for optimizer in _optimizers(torch):
        attributes = instance_dict(optimizer) or {}
        for tensor in _tensors_in(torch, attributes.get("state")):
            groups[id(tensor)] = "optimizer state"
    for module in live_modules(torch):
        for tensor in _table(module, "_buffers").values():
            groups.setdefault(id(tensor), "buffers")
    with plain(torch):
        for tensor in tensors:
            gradient = gradient_of(tensor)
            if gradient is not None:
                groups[id(gradient)] = "gradients"
            if is_instance(tensor, torch.nn.Parameter):
                groups[id(tensor)] = "parameters"
            elif in_graph(tensor):
                groups.setdefault(id(tensor), "activations")
    return groups


def by_class(torch: Any, devices: str) -> tuple[dict[str, int], list[Large]]:
    """Bytes by class of what live tensors hold, and the storages that no class names, largest first.

    Args:
        torch: the module.
        devices: `accelerator` for everything but the host's memory, or `cpu`.

    A storage has the first class of `CLASSES` that any of its tensors has.
    """
    tensors = live_tensors(torch)
    groups = groups_of(torch, tensors)
    found: dict[int, Large] = {}
    for tensor in tensors:
        group = groups.get(id(tensor), "other tensors")
        for storage in storages_of(torch, tensor):
            if not storage.bytes or (storage.device == "cpu") != (devices == "cpu"):
                continue
            known = found.get(storage.key)
            if known is None or CLASSES.index(group) < CLASSES.index(known.group):
                text = tensor_text(torch, tensor)
                found[storage.key] = Large(storage.key, storage.address, storage.bytes, storage.device, group, text)
    sums = dict.fromkeys(CLASSES, 0)
    for one in found.values():
        sums[one.group] += one.bytes
    unnamed = [one for one in found.values() if one.group in _UNNAMED]
    return (
        {group: taken for group, taken in sums.items() if taken},
        sorted(unnamed, key=lambda one: (-one.bytes, one.address)),
    )
