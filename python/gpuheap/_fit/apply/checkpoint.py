"""The lever `checkpoint`: named modules keep their inputs alone and are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gpuheap._fit.apply.recompute import (
    Contexts,
    check_repeatable,
    contexts_around,
    disable_caches,
    without_caches,
)
from gpuheap._fit.apply.target import LeverError, Target, modules_of, set_forward

__all__ = ["apply", "check", "run_twice"]

WHAT = "the lever `checkpoint`"


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The modules are there and can run twice."""
    modules = modules_of(target, lever, WHAT)
    check_repeatable(target.model, modules, WHAT)
    for name, module in modules:
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            raise LeverError(
                f"{WHAT} names `{name}`, which is a {type(module).__name__} and has no forward pass",
                f"Name what is in it: `{name}.0`, ...",
            )
        if getattr(module, "gradient_checkpointing", False) and getattr(module, "_gradient_checkpointing_func", None):
            raise LeverError(
                f"{WHAT} names `{name}`, which Hugging Face's gradient checkpointing covers already",
                "Call `model.gradient_checkpointing_disable()` first.",
            )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Wrap the forward pass of each module."""
    disable_caches(target)
    for _, module in modules_of(target, lever, WHAT):
        set_forward(target, module, run_twice)


def run_twice(
    module: Any, forward: Callable[..., Any], arguments: Any, named: dict[str, Any], inner: Contexts | None = None
) -> Any:
    """A forward pass that runs again in backward, with the same random numbers and autocast.

    Any arguments and results will do: tuples, dicts, dataclasses, None. ``inner`` makes contexts for both runs.
    """
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    contexts = contexts_around(module, inner)
    options: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
    return checkpoint(
        forward, *arguments, use_reentrant=False, preserve_rng_state=True, **options, **without_caches(named)
    )
