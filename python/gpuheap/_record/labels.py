"""What the program calls its tensors: parameters, gradients, optimizers' states, by the storage behind them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

__all__ = ["Label", "labels", "modules", "place", "plain"]

MOST = 1_000_000
"""The most labels that are taken at once."""


class Label(NamedTuple):
    """A name for the block at an address, at one time."""

    device: int
    address: int
    time_us: int
    kind: str
    """``parameter``, ``gradient`` or ``optimizer_state``."""
    name: str


def labels(torch: Any, time_us: int) -> Iterator[Label]:
    """Every parameter, buffer, gradient and optimizer state alive on a CUDA device, each storage by its first name.

    Modules are found among the objects that Python's collector knows. One that is part of no other is named by the
    global variable that holds it, else by its class. Of one that fails when it is asked, the rest is left out.
    """
    modules, optimizers = _found(torch)
    seen: set[tuple[int, int]] = set()
    names: dict[int, str] = {}
    count = 0
    for kind, name, tensor in _named(modules, optimizers, names):
        try:
            at, name = place(torch, tensor), plain(name)
        except Exception:
            # A tensor of a kind of the program's own may do anything when it is looked at.
            continue
        if at is None or at in seen:
            continue
        seen.add(at)
        count += 1
        if count > MOST:
            return
        yield Label(at[0], at[1], time_us, kind, name)


def plain(name: str) -> str:
    """A name as it can be written to a file: Python's texts may hold halves of characters."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def modules(torch: Any) -> Iterator[tuple[str, Any]]:
    """Every module of the process with its name, from the outermost in."""
    for root, module in _found(torch)[0]:
        yield from _told(_modules, module, root)


def _modules(module: Any, root: str) -> Iterable[tuple[str, Any]]:
    found: Iterable[tuple[str, Any]] = module.named_modules(prefix=root)
    return found


def _found(torch: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """The outermost modules and the optimizers of the process, with their names."""
    module_type, optimizer_type = torch.nn.Module, torch.optim.Optimizer
    modules: list[Any] = []
    optimizers: list[Any] = []
    inner: set[int] = set()
    for thing in gc.get_objects():
        # `isinstance` would ask proxies, and they may do anything.
        kind = type(thing)
        if issubclass(kind, module_type):
            modules.append(thing)
            children = thing.__dict__.get("_modules")
            if isinstance(children, dict):
                inner.update(id(child) for child in children.values() if child is not None)
        elif issubclass(kind, optimizer_type):
            optimizers.append(thing)
    outer = [module for module in modules if id(module) not in inner]
    return _with_names(outer), _with_names(optimizers)


def _with_names(things: list[Any]) -> list[tuple[str, Any]]:
    """Each thing with the name of the global variable of the main program that holds it, else its class's."""
    wanted = {id(thing) for thing in things}
    main = sys.modules.get("__main__")
    variables: dict[int, str] = {}
    for name, value in list(vars(main).items()) if main is not None else []:
        if id(value) in wanted and not name.startswith("_"):
            variables.setdefault(id(value), name)
    named = []
    taken: dict[str, int] = {}
    for thing in things:
        name = variables.get(id(thing), type(thing).__name__)
        taken[name] = taken.get(name, 0) + 1
        named.append((name if taken[name] == 1 else f"{name}#{taken[name]}", thing))
    # What a variable holds comes first: a storage that two share is called by it.
    named.sort(key=lambda pair: id(pair[1]) not in variables)
    return named


def _named(
    modules: list[tuple[str, Any]], optimizers: list[tuple[str, Any]], names: dict[int, str]
) -> Iterator[tuple[str, str, Any]]:
    for root, module in modules:
        yield from _told(_parameters, module, root, names)
        yield from _told(_buffers, module, root)
    for root, module in modules:
        yield from _told(_gradients, module, root)
    for root, optimizer in optimizers:
        yield from _told(_states, optimizer, root, names)
        yield from _told(_groups, optimizer, root, names)


def _told(ask: Callable[..., Iterable[Any]], *of: Any) -> Iterator[Any]:
    """What an object of the program tells of itself, up to where it fails."""
    try:
        yield from ask(*of)
    except Exception:
        return


def _parameters(module: Any, root: str, names: dict[int, str]) -> Iterator[tuple[str, str, Any]]:
    for name, tensor in module.named_parameters(prefix=root):
        names.setdefault(id(tensor), name)
        yield "parameter", name, tensor


def _buffers(module: Any, root: str) -> Iterator[tuple[str, str, Any]]:
    for name, tensor in module.named_buffers(prefix=root):
        yield "parameter", name, tensor


def _gradients(module: Any, root: str) -> Iterator[tuple[str, str, Any]]:
    for name, tensor in module.named_parameters(prefix=root):
        if tensor.grad is not None:
            yield "gradient", f"{name}.grad", tensor.grad


def _states(optimizer: Any, root: str, names: dict[int, str]) -> Iterator[tuple[str, str, Any]]:
    for parameter, state in list(optimizer.state.items()):
        if not isinstance(state, dict):
            continue
        of = names.get(id(parameter), "a parameter")
        for key, value in list(state.items()):
            yield "optimizer_state", f"{root}.{key} of {of}", value


def _groups(optimizer: Any, root: str, names: dict[int, str]) -> Iterator[tuple[str, str, Any]]:
    for group in optimizer.param_groups:
        for parameter in group.get("params", ()):
            if id(parameter) in names:
                continue
            yield "parameter", f"a parameter of {root}", parameter
            if getattr(parameter, "grad", None) is not None:
                yield "gradient", f"the gradient of a parameter of {root}", parameter.grad


def place(torch: Any, tensor: Any) -> tuple[int, int] | None:
    """Device and address of a tensor's storage; nothing for what is no dense CUDA tensor."""
    if not isinstance(tensor, torch.Tensor):
        return None
    # Sharded tensors have a local part.
    tensor = getattr(tensor, "_local_tensor", tensor)
    if not tensor.is_cuda or tensor.layout is not torch.strided:
        return None
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    # What a tensor of another kind calls its address may be no such.
    return (tensor.device.index or 0, address) if isinstance(address, int) and 0 < address < 1 << 64 else None
