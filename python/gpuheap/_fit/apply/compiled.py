"""The lever `compile`: torch.compile, which keeps a part of the activations and computes the rest again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch._functorch.config

from gpuheap._fit.apply.choice import fraction
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The budget is a part, and this PyTorch has it."""
    if "activation_memory_budget" in lever:
        fraction(lever, "activation_memory_budget")
        if not hasattr(torch._functorch.config, "activation_memory_budget"):
            raise LeverError(
                f"PyTorch {torch.__version__} has no `activation_memory_budget`", "It came with PyTorch 2.4."
            )
    shard = target.lever("shard")
    if shard is not None and shard.get("form") in ("pipeline", "tensor"):
        raise LeverError(
            f"`compile` does not go with {shard['form']} parallelism here", "Leave one of them out, or use FSDP2."
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Compile the model in place, when it is first called: its names and its type stay."""
    if "activation_memory_budget" in lever:
        # Read at the first call, and again whenever a new shape is compiled: so it stays set.
        target.set(torch._functorch.config, "activation_memory_budget", fraction(lever, "activation_memory_budget"))
    before = target.model._compiled_call_impl
    target.undo_by(lambda: setattr(target.model, "_compiled_call_impl", before))
    target.model.compile()
