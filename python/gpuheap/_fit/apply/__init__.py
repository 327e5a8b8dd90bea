"""Turns a plan into a program that runs: one file a lever. See :func:`apply`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuheap._fit.apply.applied import Applied, MicroBatch
from gpuheap._fit.apply.order import ordered
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["Applied", "LeverError", "MicroBatch", "apply"]


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
        LeverError: a lever is unknown or malformed, does not suit the program, or conflicts with another.
    """
    target = Target(model, optimizer, loss, levers)
    target.weigh = weigh
    chosen = ordered(target)
    for module, lever in chosen:
        module.check(target, lever)
    try:
        for module, lever in chosen:
            module.apply(target, lever)
    except BaseException:
        target.roll_back()
        raise
    target.keep()
    return Applied(target)
