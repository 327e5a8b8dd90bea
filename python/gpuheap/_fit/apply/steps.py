"""Stepping an optimizer for some of its parameters, or in another way, while it stays the object that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["check_independent", "only", "pieces", "plain_step", "replace_step"]

# These look at all parameters together, or keep something in a group that changes with a step.
_TOGETHER = ("LBFGS", "SparseAdam")


def check_independent(optimizer: Any, what: str) -> None:
    """The optimizer treats each parameter for itself, as those of `torch.optim` but a few do."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ in _TOGETHER:
        raise LeverError(
            f"{what} steps parameters one after the other, and {kind.__module__}.{kind.__name__} is not known to "
            "treat each for itself",
            "Use an optimizer of `torch.optim` such as AdamW, or leave the lever out.",
        )


def plain_step(optimizer: Any) -> Callable[..., Any]:
    """The step of the optimizer's class, below hooks and counters: for a part of a step."""
    step = type(optimizer).step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


@contextmanager
def only(optimizer: Any, parameters: list[Any]) -> Iterator[None]:
    """Have the optimizer see these parameters alone, each with the settings of its group as they are now."""
    wanted = set(map(id, parameters))
    before = optimizer.param_groups
    groups = []
    for group in before:
        chosen = [parameter for parameter in group["params"] if id(parameter) in wanted]
        if chosen:
            groups.append({**group, "params": chosen})
    optimizer.param_groups = groups
    try:
        yield
    finally:
        optimizer.param_groups = before


def pieces(optimizer: Any, most_bytes: int) -> list[list[Any]]:
    """The parameters in pieces of at most so many bytes (or of one parameter), in the order of the groups."""
    found: list[list[Any]] = []
    size = 0
    for group in optimizer.param_groups:
        size = most_bytes + 1
        for parameter in group["params"]:
            nbytes = parameter.numel() * parameter.element_size()
            if size + nbytes > most_bytes:
                found.append([])
                size = 0
            found[-1].append(parameter)
            size += nbytes
    return found


def replace_step(target: Target, optimizer: Any, step: Callable[[Any], None]) -> None:
    """Have `optimizer.step()` do this, within the hooks of the optimizer; schedulers count its calls as ever."""

    def whole(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            step(self)
        return loss

    # Schedulers wrap a method, so it has to be one.
    hooked = torch.optim.Optimizer.profile_hook_step(whole)
    target.set(optimizer, "step", MethodType(hooked, optimizer))
