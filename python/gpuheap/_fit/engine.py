"""The autograd engine while it runs: which node, which module, and what it does in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpuheap._fit.fake import FakeCuda
from gpuheap._fit.modules import FORWARD, RECOMPUTE, Modules
from gpuheap._fit.recorder import Recorder
from gpuheap._fit.saved import saved_tensors

__all__ = ["Engine"]

_ADD = torch.ops.aten.add.Tensor


class Engine:
    """Follows the backward pass."""

    def __init__(self, recorder: Recorder, mode: FakeCuda) -> None:
        """Follow what runs under a mode."""
        self._recorder = recorder
        self._mode = mode
        self.modules: Modules | None = None
        self.on_begin: Callable[[], None] = lambda: None
        self._threads: list[int] = []
        self.backwards = 0
        """How many backward passes have begun."""

    @property
    def running(self) -> bool:
        """Whether a backward pass runs."""
        return bool(self._threads)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Stand between PyTorch and its engine."""
        graph, autograd = torch.autograd.graph, torch.autograd
        original = graph._engine_run_backward
        self._mode.engine_code = original.__code__
        self._mode.before_op = self._before_op

        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            with self._pass(t_outputs):
                return original(t_outputs, *args, **kwargs)

        graph._engine_run_backward = run
        autograd._engine_run_backward = run
        try:
            yield
        finally:
            graph._engine_run_backward = original
            autograd._engine_run_backward = original
            self._mode.engine_code = None
            self._mode.before_op = None

    @contextmanager
    def _pass(self, roots: Sequence[Any]) -> Iterator[None]:
        recorder, modules = self._recorder, self.modules
        outermost = not self._threads
        if outermost:
            self.backwards += 1
            self.on_begin()
            for storage, module in self._saved(roots):
                recorder.saved(storage, module)
        stack = modules.open_stack() if modules is not None else []
        direction = modules.direction if modules is not None else FORWARD
        if modules is not None:
            # Modules that run within a backward pass run again, for a checkpoint.
            modules.direction = RECOMPUTE
        self._threads.append(threading.get_ident())
        try:
            yield
        finally:
            self._threads.pop()
            if modules is not None:
                if outermost:
                    modules.backward_done()
                modules.direction = direction
                modules.close_stack(stack)

    def _saved(self, roots: Sequence[Any]) -> Iterator[tuple[int, int]]:
        seen: set[int] = set()
        for node, tensor in saved_tensors(roots):
            storage = self._recorder.storages.find(tensor)
            if storage >= 0 and storage not in seen:
                seen.add(storage)
                module = -1 if self.modules is None else self.modules.of_node(node, threading.get_ident())
                yield storage, module

    def _before_op(self) -> None:
        modules = self.modules
        if not self._threads or modules is None or modules.in_forward:
            return
        node = torch._C._current_autograd_node()
        if node is not None:
            modules.backward_in(modules.of_node(node, self._threads[-1]))

    def leaf(self) -> Any:
        """The parameter whose gradient is being stored, or None."""
        if not self._threads:
            return None
        return getattr(torch._C._current_autograd_node(), "variable", None)

    def intercept(self, _mode: FakeCuda, func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        """Where two gradients meet, the engine adds the second to the first in place if nobody else has the first.

        It does not for subclasses of tensors, such as fake ones. Between two nodes no node is the current one.
        """
        if func is not _ADD or not self._threads or torch._C._current_autograd_node() is not None:
            return NotImplemented
        first, second = args[0], args[1]
        if torch.is_grad_enabled() or first.shape != second.shape or not _only_here(first):
            return NotImplemented
        return first


def _only_here(tensor: Any) -> bool:
    """Whether only the engine has this tensor, and no other tensor its storage, and it fills it."""
    storage = tensor.untyped_storage()
    # The engine's reference and that of the Python object; for the storage, the tensor's and this function's.
    if tensor._use_count() > _TENSOR_USES or torch._C._storage_Use_Count(storage._cdata) > _STORAGE_USES:
        return False
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)) if _HAS_OR_FALSE else bool(
        torch._prims_common.is_non_overlapping_and_dense(tensor)
    )


_HAS_OR_FALSE = hasattr(torch._prims_common, "is_non_overlapping_and_dense_or_false")
_TENSOR_USES = 2
_STORAGE_USES = 2
