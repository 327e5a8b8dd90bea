"""The lever `selective_checkpoint`: as `checkpoint`, but results of named operators are kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from gpuheap._fit.apply import checkpoint
from gpuheap._fit.apply.recompute import disable_caches
from gpuheap._fit.apply.target import LeverError, Target, modules_of, set_forward

__all__ = ["apply", "check", "operators"]

WHAT = "the lever `selective_checkpoint`"
PRODUCTS = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "aten.convolution.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
)
"""What is kept if the lever names nothing: what takes longest to compute."""


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The modules are there and can run twice, and the operators exist."""
    checkpoint.check(target, lever)
    operators(lever)


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Wrap the forward pass of each module."""
    kept = operators(lever)

    def policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    inner = functools.partial(create_selective_checkpoint_contexts, policy)
    disable_caches(target)
    for _, module in modules_of(target, lever, WHAT):
        set_forward(target, module, functools.partial(checkpoint.run_twice, inner=inner))


def operators(lever: Mapping[str, Any]) -> frozenset[Any]:
    """The operators whose results are kept, from names such as `aten.mm.default`; `aten.mm` means all its forms;
    without names the products.
    """
    names = lever.get("keep") or PRODUCTS
    if not isinstance(names, (list, tuple)):
        raise LeverError(f"{WHAT} keeps `{names}`", 'Write for example {"keep": ["aten.mm.default"]}.')
    found: list[Any] = []
    for name in names:
        parts = str(name).split(".")
        try:
            packet = getattr(getattr(torch.ops, parts[0]), parts[1])
            overloads = parts[2:] or packet.overloads()
            found.extend(getattr(packet, overload) for overload in overloads)
        except (AttributeError, IndexError) as error:
            raise LeverError(
                f"{WHAT} keeps `{name}`, which PyTorch {torch.__version__} does not have",
                "Names are as in `torch.ops`: aten.mm.default.",
            ) from error
    return frozenset(found)
