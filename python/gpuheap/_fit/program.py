"""What ``make()`` returns, in one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["Program", "as_program", "loss_of"]

_FIELDS = ("model", "optimizer", "loss", "batch", "step")
_EXPECTED = "Return (model, optimizer, loss, batch), or gpuheap.Fit(model=..., optimizer=..., loss=..., batch=...)."


@dataclass
class Program:
    """A model and how it is trained."""

    model: Any
    optimizer: Any
    """An optimizer, a tuple of them, or None to evaluate only."""
    loss: Any
    """None, ``loss(output, target)``, or ``loss(model, batch)``."""
    batch: Any
    """Tensors in any nesting, or a function of the batch size that makes them."""
    step: Callable[[Any, Any, Any], Any] | None = None
    """A whole step, ``step(model, optimizer, batch)``, of a program with a loop of its own."""

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """All optimizers."""
        if self.optimizer is None:
            return ()
        return tuple(self.optimizer) if isinstance(self.optimizer, (tuple, list)) else (self.optimizer,)

    @property
    def evaluates(self) -> bool:
        """Whether it has nothing to train with: its step is a forward pass without gradients."""
        return self.step is None and not self.optimizers


def as_program(made: Any) -> Program:
    """What a ``make()`` gave, whatever the form.

    Raises:
        TraceError: it is not a program.
    """
    import torch

    if isinstance(made, Program):
        return made
    if isinstance(made, torch.nn.Module):
        raise TraceError("make() returned only a model", _EXPECTED)
    if isinstance(made, Mapping):
        unknown = sorted(set(made) - set(_FIELDS))
        if unknown:
            raise TraceError(f"make() returned a dict with unknown keys: {', '.join(map(str, unknown))}", _EXPECTED)
        parts = {field: made.get(field) for field in _FIELDS}
    elif isinstance(made, (tuple, list)) and not hasattr(made, "_fields"):
        if not 4 <= len(made) <= 5:
            raise TraceError(f"make() returned {len(made)} values", _EXPECTED)
        parts = dict(zip(_FIELDS, made, strict=False))
    elif hasattr(made, "model"):
        parts = {field: getattr(made, field, None) for field in _FIELDS}
    else:
        raise TraceError(f"make() returned {type(made).__name__}", _EXPECTED)
    loss, step = parts.get("loss"), parts.get("step")
    if step is None and getattr(loss, "whole_step", False):
        loss, step = None, loss
    program = Program(parts["model"], parts.get("optimizer"), loss, parts.get("batch"), step)
    _check(program)
    return program


def _check(program: Program) -> None:
    import torch

    if not isinstance(program.model, torch.nn.Module):
        raise TraceError(f"the model that make() returned is a {type(program.model).__name__}", _EXPECTED)
    for optimizer in program.optimizers:
        # Optimizers of other libraries share no base class with PyTorch's.
        if not callable(getattr(optimizer, "step", None)) or not hasattr(optimizer, "param_groups"):
            raise TraceError(f"the optimizer that make() returned is a {type(optimizer).__name__}", _EXPECTED)
    if program.batch is None:
        raise TraceError("make() returned no batch", _EXPECTED)
    for name in ("loss", "step"):
        value = getattr(program, name)
        if value is not None and not callable(value):
            raise TraceError(
                f"the {name} that make() returned is a {type(value).__name__}, and not callable", _EXPECTED
            )


def call(model: Any, inputs: Any) -> Any:
    """The model on inputs: a dict's entries by name, a tuple's one after the other, anything else as it is."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)


def loss_of(model: Any, loss: Any, batch: Any, on_loss: Callable[[], None] = lambda: None) -> Any:
    """The loss of a batch, as a tensor with one element. The model's output is dropped, as in a function of its own.

    ``on_loss`` is called between the model and a loss of output and target.

    Raises:
        TraceError: there is no loss to be found.
    """
    if loss is None:
        _takes_batch(model, batch)
        return _own_loss(model, call(model, batch))
    if _takes_model(loss):
        return loss(model, batch)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TraceError(
            "a loss of output and target needs a batch of two, (inputs, target)",
            "Or write the loss as loss(model, batch).",
        )
    inputs, target = batch
    output = call(model, inputs)
    on_loss()
    return loss(output, target)


def _takes_batch(model: Any, batch: Any) -> None:
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        if isinstance(batch, Mapping):
            signature.bind(**batch)
        elif isinstance(batch, tuple):
            signature.bind(*batch)
    except TypeError as error:
        raise TraceError(
            f"without a loss, {type(model).__name__} gets the whole batch, which it does not take: {error}",
            "Return a loss from make(), as loss(output, target), or a batch that the model makes a loss of.",
        ) from error


def _takes_model(loss: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] == "model"


def _own_loss(model: Any, output: Any) -> Any:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None and isinstance(output, Mapping) and output and all(map(_is_scalar, output.values())):
        # Detection models give a dict of losses.
        found = sum(output.values())
    if found is None and isinstance(output, (tuple, list)) and output and _is_scalar(output[0]):
        found = output[0]
    if found is None and _is_scalar(output):
        found = output
    if found is None:
        raise TraceError(
            f"{type(model).__name__} gives no loss: its output is {type(output).__name__}",
            "Return a loss from make(): loss(output, target), or loss(model, batch) for the whole pass.",
        )
    return found


def _is_scalar(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() == 0
