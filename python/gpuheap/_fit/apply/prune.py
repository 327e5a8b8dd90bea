"""The lever `prune`: the smallest weights become zero, for good."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.utils import prune

from gpuheap._bytes import bytes_text
from gpuheap._fit.apply.choice import fraction
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check", "true_size"]

WHAT = "the lever `prune`"
_KINDS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """There are weights, and none is masked already."""
    fraction(lever, "amount")
    if not _layers(target.model):
        raise LeverError(f"{WHAT}: {type(target.model).__name__} has no linear layers or convolutions", "Leave it out.")
    if prune.is_pruned(target.model):
        raise LeverError(
            f"{WHAT}: the model carries masks of `torch.nn.utils.prune`, which triple its weights",
            "Make them permanent with `prune.remove(module, 'weight')`.",
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Prune layer by layer, so that there is never more than one mask; parameters stay the objects that they are."""
    before = true_size(target.model)[0]
    for module in _layers(target.model):
        # Pruning gives the parameter another tensor, so the one of before is all that is needed to go back.
        target.undo_by(partial(setattr, module.weight, "data", module.weight.data))
        prune.l1_unstructured(module, "weight", amount=fraction(lever, "amount"))
        prune.remove(module, "weight")
    size, zeros = true_size(target.model)
    target.notes.append(
        f"Pruned: {zeros:.0%} of the weights are zero, and the model has {bytes_text(size)} as before "
        f"({bytes_text(before)}): zeros take the same memory. In training they do not stay zero."
    )


def true_size(model: Any) -> tuple[int, float]:
    """Bytes of parameters, masks and what they stand for, and the part of the pruned layers' weights that is zero."""
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    weights = [module.weight for module in _layers(model)]
    # Weights behind masks are products that are kept beside mask and original.
    size += sum(module.weight.nbytes for module in _layers(model) if hasattr(module, "weight_orig"))
    total = sum(weight.numel() for weight in weights)
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    return size, zeros / total if total else 0.0


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, _KINDS)]
