"""Tensors within nested containers: batches, outputs, states."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpuheap._objects import instance_dict, is_instance
from gpuheap._tensors import storages_of

__all__ = ["keys_within", "tensors_within"]

_DEPTH = 6
_MOST = 100_000
_NOT_ENTERED = frozenset(
    (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.FrameType, type)
)


def tensors_within(torch: Any, value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """The tensors in lists, tuples, dictionaries, sets, deques, and objects that have such in their attributes.

    Modules, functions and the like are not entered. No code of the program runs.
    """
    if is_instance(value, torch.Tensor):
        yield value
        return
    if depth <= 0:
        return
    parts: list[Any]
    if is_instance(value, dict):
        parts = list(dict.values(value))
    elif is_instance(value, list):
        parts = list(list.__iter__(value))
    elif is_instance(value, tuple):
        parts = list(tuple.__iter__(value))
    elif is_instance(value, deque):
        parts = list(deque.__iter__(value))
    elif type(value) in (set, frozenset):
        parts = list(value)
    elif is_instance(value, torch.nn.Module) or type(value) in _NOT_ENTERED:
        return
    else:
        attributes = instance_dict(value)
        parts = list(attributes.values()) if attributes is not None else []
    for part in parts[:_MOST]:
        yield from tensors_within(torch, part, depth - 1)


def keys_within(torch: Any, value: Any) -> set[int]:
    """The keys of the storages behind them."""
    return {one.key for tensor in tensors_within(torch, value) for one in storages_of(torch, tensor)}
