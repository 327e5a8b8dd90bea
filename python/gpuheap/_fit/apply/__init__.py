"""Turns a plan into a program that runs: one file a lever. See :func:`apply`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from gpuheap._fit.apply.applied import Applied, MicroBatch
from gpuheap._fit.apply.order import ordered
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["Applied", "LeverError", "MicroBatch", "apply"]

# What plans were applied to: names of levers by model and by optimizer.
_applied: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
# These change neither the model nor the optimizer.
_BESIDE = ("allocator", "inference_mode", "spill")


def apply(
    levers: Sequence[Mapping[str, Any]],
    model: Any,
    optimizer: Any = None,
    *,
    loss: Any = None,
    weigh: Callable[[Any], Any] | None = None,
) -> Applied:
    """Apply levers to a program.

    Args:
        levers: what a plan lists, as ``[{"lever": "checkpoint", "modules": ["layers.0"]}, ...]``, in any order.
        model: a `torch.nn.Module`, on the device that it trains on.
        optimizer: its optimizer, over parameters of the model; None to evaluate.
        loss: as `make()` gives it: None if the model computes it, `loss(output, target)`, or `loss(model, batch)`.
        weigh: what the mean loss of a part of a batch counts for, such as its number of labels, if that is neither its
            samples nor its class labels that are not ignored.

    The model and the optimizer are changed in place where that is possible; use those of the result. All levers are
    checked before the first is applied, and if one fails while it is applied, the others are taken back.

    Raises:
        LeverError: a lever is unknown or malformed, does not suit the program, or conflicts with another; or the model
            or the optimizer has a plan already.
    """
    target = Target(model, optimizer, loss, levers)
    target.weigh = weigh
    _refuse_another(target)
    chosen = ordered(target)
    for module, lever in chosen:
        module.check(target, lever)
    try:
        for module, lever in chosen:
            module.apply(target, lever)
    except BaseException:
        target.roll_back()
        raise
    changing = tuple(str(lever["lever"]) for _, lever in chosen if lever["lever"] not in _BESIDE)
    if changing:
        for part in (model, target.model, *target.optimizers()):
            # What has no hash is not remembered.
            with suppress(TypeError):
                _applied[part] = changing
    target.keep()
    return Applied(target)


def _refuse_another(target: Target) -> None:
    """A second plan would wrap what the first has wrapped, and its figures would be of neither."""
    for part in (target.model, *target.optimizers()):
        before = None
        with suppress(TypeError):
            before = _applied.get(part)
        if before is not None:
            raise LeverError(
                f"{type(part).__name__} has a plan already, with {', '.join(f'`{name}`' for name in before)}",
                "Put all levers into one plan, or make the model and the optimizer anew before this one is applied.",
            )
