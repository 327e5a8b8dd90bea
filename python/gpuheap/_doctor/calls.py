"""Calls of PyTorch that the steps make: they are watched by standing in their place while the steps run."""

from __future__ import annotations

import inspect
import sys
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpuheap._autograd import walk_graphs
from gpuheap._doctor.operations import Operations
from gpuheap._doctor.sites import Stack, user_stack
from gpuheap._doctor.within import tensors_within
from gpuheap._objects import instance_dict, is_instance
from gpuheap._tensors import gradient_of, in_graph, storages_of

__all__ = ["Backward", "Calls", "Forward", "ZeroGrad"]

_GRAPH_SECONDS = 20.0
_MEASURED_FORWARDS = 3
_HOOKED_OUTPUTS = 16
# So many interruptions are put off until everything is in its place again.
_PATIENCE = 5


@dataclass(slots=True)
class Backward:
    """One backward pass."""

    stack: Stack
    retain_graph: bool
    create_graph: bool


@dataclass(slots=True)
class ZeroGrad:
    """A call that fills gradients with zeros instead of dropping them."""

    stack: Stack
    bytes: int


@dataclass(slots=True)
class Forward:
    """A call of the model in evaluation mode (or while it is evaluated) that built a graph."""

    stack: Stack
    bytes: int | None
    """What the graph keeps, for the first few calls."""
    used: bool = False
    """Whether a gradient has come back through it."""


@dataclass
class Calls:
    """What has been called, and the stand-ins."""

    torch: Any
    operations: Operations
    roots: frozenset[int]
    """Identities of the models that were given."""
    parameters: list[Any]
    evaluating: bool = False
    backwards: list[Backward] = field(default_factory=list)
    zero_grads: list[ZeroGrad] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    model_calls: int = 0
    with_gradient: set[int] = field(default_factory=set)
    """Identities of parameters that have had a gradient."""
    stepped: set[int] = field(default_factory=set)
    """Identities of optimizers that have made a step."""
    empty_cache: list[tuple[Stack, float]] = field(default_factory=list)
    """Where, and how many seconds it took."""
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> Calls:
        """Takes the places."""
        try:
            self._stand_in()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Everything is as it was."""
        interrupted: list[BaseException] = []
        while self._undo:
            try:
                self._undo[-1]()
            except Exception:  # a handle of a tensor that is gone
                pass
            except BaseException as raised:  # Ctrl-C: what is in the place of PyTorch's own must go in any case
                interrupted.append(raised)
                if len(interrupted) < _PATIENCE:
                    continue
            self._undo.pop()
        if interrupted:
            raise interrupted[0]

    def _stand_in(self) -> None:
        torch = self.torch
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        self._replace(torch.nn.Module, "zero_grad", self._zero_grad)
        cuda = getattr(torch, "cuda", None)
        function = getattr(cuda, "empty_cache", None)
        if type(function) is types.FunctionType:
            # Also where it was imported by name.
            replaced = self._empty_cache(function)
            for module in list(sys.modules.values()):
                attributes = instance_dict(module)
                for name, value in list(attributes.items()) if attributes is not None else []:
                    if value is function:
                        self._put(attributes, name, replaced)
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register is not None:
            self._undo.append(register(lambda optimizer, args, kwargs: self._stepped(optimizer)).remove)
        modules = torch.nn.modules.module
        self._undo.append(modules.register_module_forward_hook(self._forward).remove)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        replaced = make(original)
        setattr(owner, name, replaced)

        def undo() -> None:
            if owner.__dict__.get(name) is replaced:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _put(self, namespace: Any, name: str, replaced: Any) -> None:
        original = namespace[name]
        namespace[name] = replaced

        def undo() -> None:
            if namespace.get(name) is replaced:
                namespace[name] = original

        self._undo.append(undo)

    # The stand-ins; each one does what the original does, whatever we make of it

    def _backward(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def backward(*args: Any, **kwargs: Any) -> Any:
            outer = self.operations.backward
            stack = user_stack(sys._getframe(1))
            self.operations.backward = stack
            try:
                given = signature.bind(*args, **kwargs).arguments
                create = bool(given.get("create_graph"))
                retain = given.get("retain_graph")
                self.backwards.append(Backward(stack, bool(retain) and not create, create))
                # A local variable of a frame: it would look like a holder.
                del given, retain
            except TypeError:  # the original says it better
                self.operations.backward = outer
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self.operations.backward = outer
                self.note_gradients()

        backward.__wrapped__ = original  # type: ignore[attr-defined]
        return backward

    def note_gradients(self) -> None:
        """Which parameters have a gradient now, or give it away as soon as they have it."""
        for parameter in self.parameters:
            if id(parameter) not in self.with_gradient and (
                gradient_of(parameter) is not None or getattr(parameter, "_post_accumulate_grad_hooks", None)
            ):
                self.with_gradient.add(id(parameter))

    def _zero_grad(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                keeps = bound.arguments.get("set_to_none") is False
                del bound
            except TypeError:
                keeps = False
            if keeps:
                self.zero_grads.append(ZeroGrad(user_stack(sys._getframe(1)), self._gradient_bytes(args[0])))
            return original(*args, **kwargs)

        zero_grad.__wrapped__ = original  # type: ignore[attr-defined]
        zero_grad.__name__ = "zero_grad"
        return zero_grad

    def _gradient_bytes(self, owner: Any) -> int:
        if is_instance(owner, self.torch.nn.Module):
            parameters: Iterable[Any] = owner.parameters()
        else:
            parameters = (one for group in owner.param_groups for one in group["params"])
        found: dict[int, int] = {}
        for parameter in parameters:
            gradient = gradient_of(parameter)
            if gradient is not None:
                found.update((storage.key, storage.bytes) for storage in storages_of(self.torch, gradient))
        return sum(found.values())

    def _empty_cache(self, original: Any) -> Any:
        def empty_cache() -> None:
            started = time.perf_counter()
            original()
            self.empty_cache.append((user_stack(sys._getframe(1)), time.perf_counter() - started))

        return empty_cache

    def _stepped(self, optimizer: Any) -> None:
        self.stepped.add(id(optimizer))

    def _forward(self, module: Any, inputs: Any, output: Any) -> None:
        if id(module) not in self.roots:
            return
        self.model_calls += 1
        if (module.training and not self.evaluating) or not self.torch.is_grad_enabled():
            return
        outputs = [tensor for tensor in tensors_within(self.torch, output) if in_graph(tensor)]
        if outputs:
            self._built_graph(outputs)

    def _built_graph(self, outputs: list[Any]) -> None:
        known = None
        if len(self.forwards) < _MEASURED_FORWARDS:
            graphs = walk_graphs(self.torch, outputs, time.monotonic() + _GRAPH_SECONDS)
            own = {one.key for parameter in self.parameters for one in storages_of(self.torch, parameter)}
            known = sum(
                {
                    one.key: one.bytes
                    for saved in graphs.saved_tensors(self.torch)
                    for one in storages_of(self.torch, saved)
                    if one.key not in own
                }.values()
            )
        forward = Forward(user_stack(sys._getframe(1)), known)
        self.forwards.append(forward)

        def came_back(gradient: Any) -> None:
            forward.used = True

        for tensor in outputs[:_HOOKED_OUTPUTS]:
            self._undo.append(tensor.register_hook(came_back).remove)
