"""Names of parameters and buffers as `state_dict()` has them, for tensors that are keys (an optimizer's state)."""

from __future__ import annotations

import gc
from typing import Any

from gpuheap._objects import instance_dict, is_instance, mro
from gpuheap._tensors import loaded_torch

__all__ = ["Names", "live_modules"]


def live_modules(torch: Any) -> list[Any]:
    """The modules of the program that are no part of another one, then all others."""
    module_class = getattr(getattr(torch, "nn", None), "Module", None)
    if module_class is None:
        return []
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if module_class in mro(kind)}
    modules = [value for value in objects if type(value) in kinds]
    del objects
    children: set[int] = set()
    for module in modules:
        for child in _table(module, "_modules").values():
            children.add(id(child))
    return sorted(modules, key=lambda module: id(module) in children)


def _table(module: Any, name: str) -> dict[Any, Any]:
    attributes = instance_dict(module)
    table = attributes.get(name) if attributes is not None else None
    return table if table is not None and is_instance(table, dict) else {}


class Names:
    """Looks the modules through when the first tensor is asked for."""

    def __init__(self) -> None:
        self._names: dict[int, str] | None = None

    def of(self, value: Any) -> str | None:
        """The qualified name of a parameter or buffer; `Tensor` for another tensor; None for anything else."""
        torch = loaded_torch()
        if torch is None or not is_instance(value, torch.Tensor):
            return None
        if self._names is None:
            self._names = {}
            for module in live_modules(torch):
                self._collect(module, "", set())
        return self._names.get(id(value)) or f"<{type(value).__name__}>"

    def _collect(self, module: Any, prefix: str, seen: set[int]) -> None:
        if id(module) in seen or self._names is None:
            return
        seen.add(id(module))
        for table in ("_parameters", "_buffers"):
            for name, value in list(_table(module, table).items()):
                if value is not None:
                    self._names.setdefault(id(value), f"{prefix}{name}")
        for name, child in list(_table(module, "_modules").items()):
            if child is not None:
                self._collect(child, f"{prefix}{name}.", seen)
