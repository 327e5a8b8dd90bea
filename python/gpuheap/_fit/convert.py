"""`Module.to` for fake parameters: they stay the same objects, as in the real run, so that optimizers keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Converted", "converting"]


class Converted:
    """Parameters that could not stay the same object, by the `id` of the old one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._new_of: dict[int, tuple[Any, Any]] = {}

    def replace(self, module: Any, key: str, old: Any, new: Any) -> None:
        """Put a new parameter in place of one that is no fake tensor, for all modules that share it."""
        self._new_of[id(old)] = (old, new)
        module._parameters[key] = new

    def new_of(self, tensor: Any) -> Any:
        """What has taken a parameter's place, or the parameter itself."""
        old, new = self._new_of.get(id(tensor), (None, None))
        return new if old is tensor else tensor

    def fix(self, optimizer: Any) -> None:
        """Let an optimizer have the new ones."""
        for group in getattr(optimizer, "param_groups", ()):
            group["params"] = [self.new_of(parameter) for parameter in group["params"]]


@contextmanager
def converting() -> Iterator[Converted]:
    """Replace the method through which modules change the device and the type of their parameters."""
    converted = Converted()
    before = torch.nn.Module._apply

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if recurse:
            for module in self.children():
                module._apply(fn)
        for key, parameter in self._parameters.items():
            if parameter is None:
                continue
            known = converted.new_of(parameter)
            if known is not parameter:
                self._parameters[key] = parameter = known
            with torch.no_grad():
                new = fn(parameter)
            gradient = parameter.grad
            if new is not parameter:
                if gradient is not None:
                    parameter.grad = None
                parameter = _become(converted, self, key, parameter, new)
            if gradient is not None:
                with torch.no_grad():
                    parameter.grad = fn(gradient).requires_grad_(gradient.requires_grad)
        for key, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[key] = fn(buffer)
        return self

    torch.nn.Module._apply = apply
    try:
        yield converted
    finally:
        torch.nn.Module._apply = before


def _become(converted: Converted, module: Any, key: str, old: Any, new: Any) -> Any:
    made = torch.nn.Parameter(new, requires_grad=old.requires_grad)
    if not isinstance(old, FakeTensor) or not isinstance(made, FakeTensor):
        for name, value in vars(old).items():
            made.__dict__.setdefault(name, value)
        converted.replace(module, key, old, made)
        return made
    torch._C._swap_tensor_impl(old, made)
    # What fake tensors know about themselves, but not what the program has put on the parameter.
    old.fake_device = made.fake_device
    for name in _KNOWN:
        if name in vars(made):
            setattr(old, name, getattr(made, name))
    return old


_KNOWN = (
    "constant",
    "real_tensor",
    "nonzero_memo",
    "item_memo",
    "unique_memo",
    "unique_consecutive_memo",
    "_nonzero_memo",
    "_item_memo",
)
