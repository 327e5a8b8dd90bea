"""The optimizer in backward: each parameter is stepped, and its gradient dropped, as soon as that gradient is there."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any

import torch

from gpuheap._fit.apply.steps import check_independent, only, plain_step, replace_step
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]

WHAT = "the optimizer in backward"
_GONE = (
    "nothing is trained: the optimizer that the plan steps during the backward pass is gone; keep what `apply` "
    "returned, or the optimizer, as long as you train"
)


def check(target: Target, optimizer: Any) -> None:
    """Each parameter can be stepped for itself, right after its gradient."""
    check_independent(optimizer, WHAT)
    shard = target.lever("shard")
    if shard is not None:
        raise LeverError(
            f"{WHAT} does not go with the lever `shard`: gradients are exchanged between ranks after they are there",
            "Leave one of them out.",
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and not parameter.is_leaf:
                raise LeverError(f"{WHAT}: a parameter of the optimizer is no leaf of the graph", "Leave it out.")


def apply(target: Target, optimizer: Any) -> None:
    """Step within hooks of the parameters. The optimizer stays the object that schedulers and checkpoints know.

    Each step reads the settings of its group at that moment, so schedulers work; `optimizer.step()` and `zero_grad()`
    have nothing left to do, but run the optimizer's hooks and count for schedulers.
    """
    step = plain_step(optimizer)
    # A parameter keeps its hooks where Python's collector does not see them: what they held would never go.
    kept = weakref.ref(optimizer)
    # The backward pass of several devices has a thread for each.
    lock = threading.Lock()
    told = False

    def step_one(parameter: Any) -> None:
        nonlocal told
        own = kept()
        if own is None:
            if not told:
                told = True
                warnings.warn(_GONE, RuntimeWarning, stacklevel=2)
            return
        with lock, torch.no_grad(), only(own, [parameter]):
            step(own)
        parameter.grad = None

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(step_one)
                target.undo_by(handle.remove)
    replace_step(target, optimizer, lambda self: None)
    target.steps_in_backward = True
    target.notes.append(
        "The optimizer steps during the backward pass: clip gradients by value in hooks of their own if at all, a norm "
        "over all gradients cannot be had."
    )
