"""Losses whose one number keeps the memory of all of theirs.

PyTorch computes them for every element into the result and shrinks it to one number afterwards, which leaves the
storage as large as it was (`Loss.cpp`, `Loss.cu`; the same on the CPU). Its own fake tensors have it small at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["run"]

_aten = torch.ops.aten
_REDUCTION = {
    _aten.mse_loss.default: 2,
    _aten.smooth_l1_loss.default: 2,
    _aten.soft_margin_loss.default: 2,
    _aten.binary_cross_entropy.default: 3,
}
"""Where the kind of reduction stands among the arguments; the mean is what is meant where it is left out."""
_MEAN = 1


def run(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The loss in a storage of the size that it has on the GPU; else `NotImplemented`."""
    at = _REDUCTION.get(func)
    if at is None or args[0].device.type != "cuda":
        return NotImplemented
    if not (args[at] if len(args) > at else kwargs.get("reduction", _MEAN)):
        return NotImplemented
    source, target = args[0], args[1]
    with mode:
        shape = torch.broadcast_shapes(source.shape, target.shape)
        whole = torch.empty(shape, dtype=torch.result_type(source, target), device=source.device)
        return whole.as_strided((), ()) if whole.numel() else NotImplemented
