"""Modules of the model, and which of them runs: forward by hooks, backward by the age of autograd's nodes.

Nodes of the autograd graph are numbered in the order in which they are made. The numbers at which a module was entered
and left during the forward pass tell, in the backward pass, from which module a node is.
"""

from __future__ import annotations

import bisect
import threading
from typing import Any

from gpuheap._fit.recorder import Recorder

__all__ = ["FORWARD", "Modules"]

FORWARD, BACKWARD, RECOMPUTE = range(3)


class Modules:
    """The modules of one model."""

    def __init__(self, recorder: Recorder, model: Any) -> None:
        """Number them; a parent comes before its parts."""
        self._recorder = recorder
        self.names: list[str] = []
        self.classes: list[str] = []
        self.parents: list[int] = []
        self._number_of: dict[int, int] = {}
        self._modules: list[Any] = []
        self._of_parameter: dict[int, int] = {}
        self._stack: list[tuple[int, int]] = []
        self._forward: list[int] = []
        self._log: dict[int, tuple[list[int], list[int]]] = {}
        self._backward: list[int] = []
        self._hooks: list[Any] = []
        self.direction = FORWARD
        self.update(model)

    def update(self, model: Any) -> None:
        """Number what is new in a model, by what it is called there."""
        by_name: dict[str, int] = {}
        for name, module in model.named_modules():
            number = self._number_of.get(id(module))
            if number is None:
                number = self._number_of[id(module)] = len(self.names)
                self._modules.append(module)  # keeps the id from being used again
                self.names.append(name)
                self.classes.append(type(module).__name__)
                self.parents.append(by_name.get(name.rpartition(".")[0], -1) if name else -1)
            by_name[name] = number
            for parameter in module.parameters(recurse=False):
                self._of_parameter.setdefault(id(parameter), number)

    def of_parameter(self, parameter: Any) -> int:
        """The module that has a parameter, or -1."""
        return self._of_parameter.get(id(parameter), -1)

    def number_of(self, module: Any) -> int:
        """The number of a module, or -1."""
        return self._number_of.get(id(module), -1)

    def name(self, number: int) -> str:
        """What a module is called in a message."""
        if number < 0:
            return "the program"
        name, kind = self.names[number], self.classes[number]
        return f"{name} ({kind})" if name else kind

    def attach(self) -> None:
        """Follow every module's forward pass."""
        from torch.nn.modules import module as torch_module

        self._hooks = [
            torch_module.register_module_forward_pre_hook(self._before),
            torch_module.register_module_forward_hook(self._after, always_call=True),
        ]

    def detach(self) -> None:
        """Stop that."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before(self, module: Any, _args: Any) -> None:
        number = self._number_of.get(id(module))
        if number is None:
            return
        self._stack.append((number, self.direction))
        self._recorder.module = number
        self._recorder.enter(number, self.direction)
        self._mark(number)

    def _after(self, module: Any, _args: Any, _output: Any) -> None:
        number = self._number_of.get(id(module))
        if number is None or not any(number == one for one, _ in self._stack):
            return
        while self._stack:
            # Modules that were left by an exception inside of this one have to be left, too.
            top, direction = self._stack.pop()
            self._recorder.leave(top, direction)
            if top == number:
                break
        self._recorder.module = self._stack[-1][0] if self._stack else -1
        self._mark(self._recorder.module)

    def _mark(self, number: int) -> None:
        import torch

        ages, modules = self._log.setdefault(threading.get_ident(), ([], []))
        age = torch.autograd._get_sequence_nr()
        if ages and ages[-1] == age:
            modules[-1] = number
        else:
            ages.append(age)
            modules.append(number)

    def open_stack(self) -> list[tuple[int, int]]:
        """Modules that are entered now, set aside while autograd runs; to be given to :meth:`close_stack`."""
        stack, self._stack = self._stack, []
        return stack

    def close_stack(self, stack: list[tuple[int, int]]) -> None:
        """The opposite of :meth:`open_stack`."""
        while self._stack:
            self._recorder.leave(*self._stack.pop())
        self._stack = stack
        self._recorder.module = stack[-1][0] if stack else -1

    @property
    def in_forward(self) -> bool:
        """Whether a module's forward pass runs now."""
        return bool(self._stack)

    def of_node(self, node: Any, thread: int) -> int:
        """The module in whose forward pass a node of the autograd graph was made, on a thread; or -1."""
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self.of_parameter(variable)
        log = self._log.get(thread)
        if log is None:
            return -1
        at = bisect.bisect_right(log[0], node._sequence_nr()) - 1
        return log[1][at] if at >= 0 else -1

    def backward_in(self, number: int) -> None:
        """The backward pass is in this module now: leave those that it is not part of, enter those on the way."""
        self._recorder.module = number
        at = self._backward
        if at and at[-1] == number:
            return
        way: list[int] = []
        while number >= 0:
            way.append(number)
            number = self.parents[number]
        way.reverse()
        common = 0
        while common < min(len(way), len(at)) and way[common] == at[common]:
            common += 1
        for left in reversed(at[common:]):
            self._recorder.leave(left, BACKWARD)
        for entered in way[common:]:
            self._recorder.enter(entered, BACKWARD)
        self._backward = way

    def backward_done(self) -> None:
        """The backward pass is over."""
        self.backward_in(-1)
        self._backward = []

    def new_step(self) -> None:
        """Forget what belonged to the step before."""
        self._log.clear()

    def table(self) -> list[dict[str, Any]]:
        """As in the trace."""
        rows = zip(self.names, self.classes, self.parents, strict=True)
        return [{"name": name, "class": kind, "parent": parent} for name, kind, parent in rows]
