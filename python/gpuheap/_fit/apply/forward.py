"""One forward pass with its loss, by the conventions of `make()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gpuheap._fit.apply.target import LeverError

__all__ = ["call", "is_whole_step", "loss_of", "takes_model"]


def is_whole_step(loss: Any) -> bool:
    """Whether the program does its whole step itself: `step(model, optimizer, batch)`."""
    return bool(getattr(loss, "whole_step", False))


def takes_model(loss: Callable[..., Any]) -> bool:
    """Whether a loss is the whole forward pass, `loss(model, batch)`: its first parameter is named `model`."""
    try:
        parameters = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] == "model"


def call(model: Any, inputs: Any) -> Any:
    """The model on inputs: a dict's entries by name, a tuple's one after the other, anything else as it is."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def loss_of(model: Any, loss: Any, batch: Any) -> Any:
    """The loss of a batch, as a tensor with one element."""
    if loss is None:
        output = call(model, batch)
        found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if found is None and isinstance(output, (tuple, list)) and output and getattr(output[0], "dim", lambda: 1)() == 0:
            found = output[0]
        if found is None and isinstance(output, dict) and output and all(_is_scalar(value) for value in output.values()):
            # Detection models give a dict of losses.
            found = sum(output.values())
        if found is None and _is_scalar(output):
            found = output
        if found is None:
            raise LeverError(
                f"{type(model).__name__} gives no loss: its output is {type(output).__name__}",
                "Return a loss from `make()`: `loss(output, target)`, or `loss(model, batch)` for the whole pass.",
            )
        return found
    if takes_model(loss):
        return loss(model, batch)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise LeverError(
            "a loss of output and target needs a batch of two, `(inputs, target)`",
            "Or write the loss as `loss(model, batch)`.",
        )
    inputs, target = batch
    return loss(call(model, inputs), target)


def _is_scalar(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() == 0
