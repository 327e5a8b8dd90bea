"""What ``make()`` returns, in one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["Program", "as_program", "loss_of", "output_of"]

_FIELDS = ("model", "optimizer", "loss", "batch", "step")
_EXPECTED = "Return (model, optimizer, loss, batch), or gpuheap.Fit(model=..., optimizer=..., loss=..., batch=...)."
_FEWEST, _MOST = 3, 5
"""Values that a tuple may have: a model, an optimizer and a batch, or a loss and a step as well."""


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
        if not _FEWEST <= len(made) <= _MOST:
            raise TraceError(f"make() returned {len(made)} values", _EXPECTED)
        parts = _in_order(made)
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


def _in_order(made: Sequence[Any]) -> dict[str, Any]:
    """The parts of a tuple: as they are documented, or, where they are in another order, by what each of them is."""
    parts: dict[str, Any] = dict(zip(_FIELDS, made, strict=False))
    if _is_scheduler(parts.get("step")):
        # It has no tensors, and no part in a step's memory.
        del parts["step"]
    if len(made) > _FEWEST and _is_model(made[0]) and (made[1] is None or _is_optimizers(made[1])):
        return parts
    found: dict[str, Any] = {}
    rest = [value for value in made if not _is_scheduler(value)]
    # The model is the one with most parameters: losses can be modules, too.
    models = [value for value in rest if _is_model(value)]
    if models:
        found["model"] = max(models, key=lambda model: sum(one.numel() for one in model.parameters()))
    for field, fits in (("optimizer", _is_optimizers), ("loss", _is_loss), ("batch", lambda value: value is not None)):
        left = [value for value in rest if not any(value is known for known in found.values())]
        value = next((value for value in left if fits(value)), None)
        if value is not None:
            found[field] = value
    # What is left without a part, as a second function, is told as it was given.
    complete = {"model", "optimizer", "batch"} <= found.keys()
    return found if complete and len(found) == sum(value is not None for value in rest) else parts


def _is_model(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _is_optimizer(value: Any) -> bool:
    # Optimizers of other libraries share no base class with PyTorch's.
    return callable(getattr(value, "step", None)) and hasattr(value, "param_groups")


def _is_optimizers(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_is_optimizer, value))
    return _is_optimizer(value)


def _is_scheduler(value: Any) -> bool:
    return callable(getattr(value, "step", None)) and callable(getattr(value, "get_last_lr", None))


def _is_loss(value: Any) -> bool:
    from gpuheap._fit import batches

    return _is_model(value) or (callable(value) and not isinstance(value, type) and not batches.makes(value))


def _check(program: Program) -> None:
    import torch

    if isinstance(program.model, (tuple, list)) and any(map(_is_model, program.model)):
        raise TraceError(
            f"the model that make() returned is a {type(program.model).__name__} of models",
            "Put them into one: `torch.nn.ModuleList([...])`; the loss or the step then gets it as `model`.",
        )
    if not isinstance(program.model, torch.nn.Module):
        raise TraceError(f"the model that make() returned is a {type(program.model).__name__}", _EXPECTED)
    for optimizer in program.optimizers:
        if isinstance(optimizer, type):
            raise TraceError(
                f"the optimizer that make() returned is the class {optimizer.__name__}, and not one of its objects",
                f"Make one: `{optimizer.__name__}(model.parameters(), ...)`.",
            )
        if not _is_optimizer(optimizer):
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
        return _own_loss(model, output_of(model, batch))
    if _takes_model(loss):
        return loss(model, batch)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        found = f"{len(batch)} parts" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
        raise TraceError(
            f"a loss of output and target needs a batch of two, (inputs, target), and this batch is {found}",
            "Or write the loss as loss(model, batch), with a first parameter of that name: it gets the whole batch.",
        )
    inputs, target = batch
    output = call(model, inputs)
    on_loss()
    return loss(output, target)


def output_of(model: Any, batch: Any) -> Any:
    """What the model makes of a whole batch: of a program that evaluates, all there is; else it has the loss."""
    _takes_batch(model, batch)
    return call(model, batch)


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


_MODEL_NAMES = ("model", "net", "network", "module")
"""What the first parameter of a loss is called that gets the model and the whole batch."""


def _takes_model(loss: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] in _MODEL_NAMES


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
