"""Fused optimizers that have no definition for fake tensors: they change what they are given, and take nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["run"]

_NAMES = ("_fused_sgd_", "_fused_adagrad_")
_OPERATORS = {
    getattr(packet, overload)
    for packet in (getattr(torch.ops.aten, name, None) for name in _NAMES)
    if packet is not None
    for overload in packet.overloads()
}


def run(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Nothing, where it is such an optimizer; else `NotImplemented`."""
    del mode, args, kwargs
    return None if func in _OPERATORS else NotImplemented
