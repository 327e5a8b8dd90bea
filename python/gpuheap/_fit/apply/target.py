"""What levers are applied to, and how what they did is taken back when one of them fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch

from gpuheap.errors import Error

__all__ = ["LeverError", "Target", "module_named", "set_forward"]

Lever = Mapping[str, Any]


class LeverError(Error):
    """A lever cannot be applied to this program: what is in the way, and what to do. Nothing was changed."""


class Target:
    """The program that is changed: model, optimizer and loss, and what the levers add to a step.

    Levers first check everything (nothing is changed), then change it, each change with its undoing.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Any, levers: Sequence[Lever]) -> None:
        """Keep the parts. ``levers`` are all that will be applied, so that each can see the others."""
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.weigh: Callable[[Any], Any] | None = None
        """What the mean loss of a part of a batch weighs, if the program says it."""
        self.levers = list(levers)
        self.contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        """Entered around each forward pass with its loss, outermost first."""
        self.scaler: Any = None
        self.accumulation = 1
        self.input_dtype: Any = None
        """Floating inputs of the model get this type."""
        self.ranks = 1
        """Ranks that each take a part of the batch."""
        self.group: Any = None
        """Their process group."""
        self.pipeline: Any = None
        """Runs a whole forward and backward pass over the stages."""
        self.evaluation = False
        """Whether nothing is trained."""
        self.steps_in_backward = False
        self.environment: dict[str, str] = {}
        """What has to be set before the program starts."""
        self.command: list[str] = []
        """What the program has to be started under."""
        self.notes: list[str] = []
        self._undo: list[Callable[[], None]] = []

    def lever(self, name: str) -> Lever | None:
        """The lever of that name among those that are applied."""
        return next((lever for lever in self.levers if lever.get("lever") == name), None)

    def undo_by(self, undo: Callable[[], None]) -> None:
        """Say how the change that follows, or was just made, is taken back."""
        self._undo.append(undo)

    def roll_back(self) -> None:
        """Take all changes back, newest first."""
        while self._undo:
            self._undo.pop()()

    def keep(self) -> None:
        """The changes stay: forget how to take them back, and what that held in memory."""
        self._undo.clear()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object that is not a module's parameter, to be taken back on a failure."""
        own = vars(owner) if hasattr(owner, "__dict__") else {}
        if name in own:
            before = own[name]
            self.undo_by(lambda: setattr(owner, name, before))
        elif hasattr(type(owner), name):
            # The class has it: what is set on the object hides that until it is deleted.
            self.undo_by(lambda: delattr(owner, name))
        elif hasattr(owner, name):
            inherited = getattr(owner, name)
            self.undo_by(lambda: setattr(owner, name, inherited))
        else:
            self.undo_by(lambda: delattr(owner, name))
        setattr(owner, name, value)

    @property
    def device(self) -> Any:
        """Where the model is; a model in several places has no one device."""
        devices = {tensor.device for tensor in self.tensors()}
        if len(devices) == 1:
            return devices.pop()
        if not devices:
            return torch.device("cpu")
        kinds = sorted(str(device) for device in devices)
        raise LeverError(
            f"the model's tensors are on several devices: {', '.join(kinds)}",
            "Move the model to one device with `model.to(...)` before the plan is applied.",
        )

    def tensors(self) -> Iterator[Any]:
        """Parameters and buffers of the model."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    def optimizers(self) -> list[Any]:
        """The optimizers, none, one or several."""
        if self.optimizer is None:
            return []
        return list(self.optimizer) if isinstance(self.optimizer, (tuple, list)) else [self.optimizer]

    def one_optimizer(self, what: str) -> Any:
        """The optimizer, where there has to be exactly one."""
        found = self.optimizers()
        if len(found) != 1:
            count = "no optimizer" if not found else f"{len(found)} optimizers"
            raise LeverError(
                f"{what} needs one optimizer, but the program has {count}",
                "Give the optimizer to `plan.apply(model, optimizer)`, or leave this lever out.",
            )
        return found[0]

    def restrict(self, what: str, others: Mapping[str, str]) -> None:
        """Refuse levers that do not go with ``what``: names of levers, each with the reason."""
        for name, why in others.items():
            if self.lever(name) is not None:
                raise LeverError(f"{what} does not go with the lever `{name}`: {why}", "Leave one of them out.")


def module_named(model: Any, name: str, what: str) -> Any:
    """The module of that name, as `named_modules` says it."""
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        known = [known for known, _ in model.named_modules() if known]
        last = name.rsplit(".", 1)[-1]
        near = [other for other in known if other.endswith(last)][:3] or known[:3]
        raise LeverError(
            f"{what}: {type(model).__name__} has no module `{name}`" + (f"; it has `{near[0]}`" if near else ""),
            "The plan was made for another model: make it anew with `gpuheap fit`."
            + (f" Modules here are for example {', '.join(f'`{one}`' for one in near)}." if near else ""),
        ) from error


def modules_of(target: Target, lever: Lever, what: str) -> list[tuple[str, Any]]:
    """The modules that a lever names: all there, none within another, each once."""
    names = lever.get("modules")
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise LeverError(f"{what} names no modules", 'Write for example {"modules": ["encoder.layer.0"]}.')
    found = [(name, module_named(target.model, name, what)) for name in dict.fromkeys(names)]
    chosen = set(names)
    for name in chosen:
        parts = name.split(".")
        for length in range(len(parts)):
            outer = ".".join(parts[:length])
            if outer in chosen and name:
                shown = outer or "the model itself"
                raise LeverError(f"{what} names `{name}` and {shown}, which contains it", "Name one of the two.")
    seen: dict[int, str] = {}
    unique = []
    for name, module in found:
        # One module under two names is wrapped once.
        if id(module) not in seen:
            seen[id(module)] = name
            unique.append((name, module))
    return unique


def set_forward(target: Target, module: Any, around: Callable[..., Any]) -> None:
    """Put ``around(module, forward, arguments, named)`` around a module's `forward`.

    Hooks of the module stay outside, names in `state_dict` stay. It is a method of the module, so that a deep copy of
    the model runs its own weights; a model that is pickled comes back as it was before.
    """
    before = module.forward
    bound = getattr(before, "__self__", None) is module
    function = before.__func__ if bound else None

    @functools.wraps(before)
    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        inner = before if function is None else MethodType(function, self)
        return around(self, inner, arguments, named)

    target.set(module, "forward", MethodType(forward, module))
