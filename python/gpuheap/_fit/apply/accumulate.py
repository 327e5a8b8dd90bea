"""The lever `accumulate`: the same effective batch from several smaller passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import whole
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The factor is one, and gradients may add up."""
    factor = whole(lever, "factor", 1)
    form = (target.lever("optimizer") or {}).get("form")
    if factor > 1 and form == "in_backward":
        raise LeverError(
            "`accumulate` does not go with the optimizer in backward: it would step after every part of the batch",
            "Leave one of them out.",
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Have batches split."""
    target.accumulation = whole(lever, "factor", 1)
    norms = [
        name
        for name, module in target.model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training
    ]
    if target.accumulation > 1 and norms:
        target.notes.append(
            f"`{norms[0]}` and {len(norms) - 1} more normalise over the samples of one pass: with accumulation that is "
            f"1/{target.accumulation} of the batch, so results differ a little from those of the whole batch."
        )
