"""Memory that a kernel takes from PyTorch's allocator beside its results, where the shapes tell how much.

Libraries' workspaces depend on the device and are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpuheap._fit.pretend import Gpu
from gpuheap._fit.recorder import Recorder

__all__ = ["ORDER", "Kernels"]

Rule = Callable[[Gpu, Sequence[Any], Mapping[str, Any], Sequence[Any]], Sequence[int]]


class Kernels:
    """Scratch memory of kernels."""

    def __init__(self, recorder: Recorder, gpu: Gpu) -> None:
        """For the storages of a recorder, on a GPU."""
        self._recorder = recorder
        self._gpu = gpu

    def scratch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> list[int]:
        """Storages that the kernel of an operator uses while it runs; whoever calls ends them."""
        rule = RULES.get(func)
        if rule is None:
            return []
        storages, module = self._recorder.storages, self._recorder.module
        sizes = [size for size in rule(self._gpu, args, kwargs, results) if size]
        return [storages.scratch(size, "workspace", module) for size in sizes]


_aten = torch.ops.aten

ORDER: dict[Any, tuple[int, ...]] = {
    _aten.native_dropout.default: (1, 0),
}
"""The order in which a kernel makes its results, where it is not that of the results."""

RULES: dict[Any, Rule] = {}
