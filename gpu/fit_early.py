"""The first copy of the batch, which `fit_truth.py` has on the GPU before the model comes there.

It makes everything on the GPU, for speed, takes the model to the host and back, and then copies the batch by way of the
host, so that it comes after the model, as in a program. The first copy goes only then: its segments are there before
the model's, and idle in the cache afterwards. A program that makes its batch on the host has none of that, so a trace
of it has to have the first copy added before it is held against what was measured.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import zoo
from zoo_steps import SETTINGS, floats_to, lever

__all__ = ["with_early_batch"]


def batch_bytes(model: str, size: int, setting: str) -> list[int]:
    """Bytes of each storage of a batch, in the order in which they are made."""
    with torch.device("meta"):
        batch = zoo.MODELS[model].batch(size)
    dtype = lever(SETTINGS[setting], "parameters")
    if dtype:
        batch = floats_to(batch, getattr(torch, dtype["dtype"]))
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    found = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return list(found.values())


def with_early_batch(trace: dict[str, Any], model: str, size: int, setting: str) -> dict[str, Any]:
    """The trace with the first copy: there before the model, gone once the batch is loaded."""
    sizes = batch_bytes(model, size, setting)
    found = {**trace, "storages": {name: list(column) for name, column in trace["storages"].items()}}
    storages = found["storages"]
    first = len(storages["bytes"])
    values = {"bytes": None, "class": "input", "module": -1, "dtype": "uint8", "name": ""}
    for number in sizes:
        for name, column in storages.items():
            column.append(number if name == "bytes" else values[name])
    slots = range(first, first + len(sizes))
    events = copy.copy(trace["events"])
    begins = events.index(["phase", "setup"]) + 1
    loaded = events.index(["step", 1])
    events[loaded:loaded] = [["free", slot] for slot in slots]
    events[begins:begins] = [["alloc", slot] for slot in slots]
    found["events"] = events
    return found
