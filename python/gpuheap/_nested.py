"""Batches as loaders make them: tensors within dictionaries, lists, tuples, named tuples and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

__all__ = ["map_leaves"]


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed; containers are new, and of the same types."""
    if isinstance(batch, Mapping):
        return _map_mapping(batch, change)
    if isinstance(batch, tuple):
        items = [map_leaves(item, change) for item in batch]
        if type(batch) is tuple:
            return tuple(items)
        # A named tuple that can move itself, such as a packed sequence, is more than its parts.
        make: Any = getattr(type(batch), "_make", None)
        return change(batch) if make is None or hasattr(batch, "to") else make(items)
    if type(batch) is list:
        return [map_leaves(item, change) for item in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type) and not hasattr(batch, "to"):
        made = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # Also in a frozen one: nobody else has seen it yet.
            object.__setattr__(made, field.name, map_leaves(getattr(batch, field.name), change))
        return made
    return change(batch)


def _map_mapping(batch: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    items = {key: map_leaves(value, change) for key, value in batch.items()}
    if type(batch) is dict:
        return items
    if isinstance(batch, MutableMapping):
        # Keeps what is not an item, such as a default factory.
        made = copy.copy(batch)
        made.update(items)
        return made
    make: Any = type(batch)
    return make(items)
