"""The models that are examined, their parameters and buffers, and the optimizers that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuheap._doctor.heap import Heap
from gpuheap._doctor.within import keys_within
from gpuheap._held import _optimizers
from gpuheap._names import _table
from gpuheap._objects import class_module, class_name, instance_dict, is_instance, mro
from gpuheap._tensors import gradient_of, storages_of
from gpuheap.errors import Error

__all__ = ["Item", "Subject", "roots_of"]

_OTHERS = {
    "jax": "JAX",
    "jaxlib": "JAX",
    "flax": "JAX",
    "haiku": "JAX",
    "equinox": "JAX",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
}


@dataclass(frozen=True, slots=True)
class Item:
    """A parameter or buffer, by what can be said about it without holding it."""

    name: str
    buffer: bool
    identity: int
    keys: tuple[int, ...]
    address: int
    bytes: int
    dtype: str
    device: str
    shape: tuple[int, ...]
    requires_grad: bool
    persistent: bool = True

    @property
    def element_size(self) -> int:
        """Bytes of one element."""
        count = 1
        for size in self.shape:
            count *= size
        return self.bytes // count if count else 0


@dataclass
class Subject:
    """What is examined. The modules are the caller's; tensors are not held."""

    torch: Any
    roots: list[Any]
    given: Any = None
    """The optimizer that was given, or several of them."""
    heap: Heap | None = None
    """Knows the live optimizers."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of parameters by identity, as `named_parameters()` has them."""

    def modules(self) -> Iterator[tuple[str, Any]]:
        """All modules with their names, each once."""
        seen: set[int] = set()
        stack = [("" if len(self.roots) == 1 else f"[{at}]", root) for at, root in enumerate(self.roots)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            children = [
                (f"{name}.{key}" if name else str(key), child)
                for key, child in _table(module, "_modules").items()
                if child is not None
            ]
            stack += reversed(children)

    def tensors(self) -> Iterator[tuple[str, bool, bool, Any]]:
        """Name, whether it is a buffer, whether it is saved, and the tensor; each tensor once."""
        seen: set[int] = set()
        # Lazy parameters have neither shape nor memory yet.
        lazy = getattr(getattr(self.torch.nn, "parameter", None), "UninitializedTensorMixin", None)
        for prefix, module in self.modules():
            transient = (instance_dict(module) or {}).get("_non_persistent_buffers_set") or ()
            for table in ("_parameters", "_buffers"):
                for key, tensor in list(_table(module, table).items()):
                    if not is_instance(tensor, self.torch.Tensor) or id(tensor) in seen:
                        continue
                    if lazy is not None and is_instance(tensor, lazy):
                        continue
                    seen.add(id(tensor))
                    yield f"{prefix}.{key}" if prefix else str(key), table == "_buffers", key not in transient, tensor

    def parameters(self) -> list[Any]:
        """All parameters."""
        return [tensor for _, buffer, _, tensor in self.tensors() if not buffer]

    def items(self) -> list[Item]:
        """All parameters and buffers."""
        return [item for item in (self._item(*one) for one in self.tensors()) if item is not None]

    def _item(self, name: str, buffer: bool, persistent: bool, tensor: Any) -> Item | None:
        self.names[id(tensor)] = name
        try:
            storages = storages_of(self.torch, tensor)
            size = int(tensor.numel()) * int(tensor.element_size())
            return Item(
                name,
                buffer,
                id(tensor),
                tuple(one.key for one in storages),
                storages[0].address if storages else 0,
                size,
                str(tensor.dtype).removeprefix("torch."),
                str(tensor.device),
                tuple(int(part) for part in tensor.shape),
                bool(tensor.requires_grad),
                persistent,
            )
        except Exception:  # lazy parameters have no shape yet, exotic subclasses no element size
            return None

    def optimizers(self) -> list[Any]:
        """The optimizers of these models: given, or alive and with one of their parameters."""
        found = list(self.given) if type(self.given) in (list, tuple) else [] if self.given is None else [self.given]
        own = {id(one) for one in self.parameters()}
        alive = _optimizers(self.torch) if self.heap is None else self.heap.optimizers()
        for optimizer in alive:
            if not any(optimizer is one for one in found) and any(id(one) in own for one in parameters_of(optimizer)):
                found.append(optimizer)
        return found

    def owned(self, baseline: frozenset[int] | None = None) -> frozenset[int]:
        """Keys of the storages of parameters, buffers, gradients and optimizer state.

        Args:
            baseline: identities of the parameters and buffers that were there at the beginning; what came later is not
                the model's by right.
        """
        keys: set[int] = set()
        for _, _, _, tensor in self.tensors():
            if baseline is not None and id(tensor) not in baseline:
                continue
            keys.update(one.key for one in storages_of(self.torch, tensor))
            gradient = gradient_of(tensor)
            if gradient is not None:
                keys.update(one.key for one in storages_of(self.torch, gradient))
        for optimizer in self.optimizers():
            attributes = instance_dict(optimizer) or {}
            for parameter, state in list((attributes.get("state") or {}).items()):
                if baseline is None or id(parameter) in baseline or not is_instance(parameter, self.torch.Tensor):
                    keys |= keys_within(self.torch, state)
            for group in attributes.get("param_groups") or ():
                keys |= keys_within(self.torch, {name: value for name, value in group.items() if name != "params"})
        return frozenset(keys)


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters that an optimizer has."""
    groups = (instance_dict(optimizer) or {}).get("param_groups") or ()
    return [one for group in groups for one in group.get("params", ())]


def roots_of(torch: Any | None, model: Any) -> list[Any]:
    """The models out of what was given as `model`.

    Raises:
        Error: it is something else.
    """
    models = list(model.values()) if type(model) is dict else list(model) if type(model) in (list, tuple) else [model]
    for one in models:
        if torch is not None and is_instance(one, torch.nn.Module):
            continue
        names = {class_module(kind).partition(".")[0] for kind in mro(type(one))}
        framework = next((_OTHERS[name] for name in sorted(names & _OTHERS.keys())), None)
        if framework is not None:
            raise Error(
                f"`doctor` looks into PyTorch models, and this {class_name(type(one))} is a model of {framework}",
                hint="`gpuheap.scope`, `gpuheap.holders` and `gpuheap.release` do not ask for a PyTorch model",
            )
        raise Error(
            f"`doctor` needs a `torch.nn.Module`, or a list of them, not a {class_name(type(one))}",
            hint="give the model first, then the function that makes one step: `gpuheap.doctor(model, step)`",
        )
    if not models:
        raise Error("`doctor` needs a model, and the list is empty", hint="an empty `torch.nn.Module()` will do")
    return models
