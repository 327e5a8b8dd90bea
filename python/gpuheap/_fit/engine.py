"""The autograd engine while it runs: which node, which module, and what it does in place."""

from __future__ import annotations

import sys
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
        self._made_in: dict[int, int] = {}
        self._alone: tuple[int, int, int] | None = None
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
        if outermost:
            self._made_in.clear()
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

    def made(self, storage: int) -> None:
        """An operator has made a storage."""
        if self._threads:
            self._made_in[storage] = self._evaluation()

    def _evaluation(self) -> int:
        node = torch._C._current_autograd_node()
        return -1 if node is None else node._sequence_nr()

    def intercept(self, _mode: FakeCuda, func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        """Where two gradients meet, the engine adds the second to the first in place if nobody else has the first.

        It does not for subclasses of tensors, such as fake ones. An addition is the engine's, and not part of the
        formula of a node, if it has no Python around it and what it adds to was made by another node than the current.
        """
        if func is not _ADD or not self._threads or len(args) != 2:
            return NotImplemented
        first, second = args
        if not isinstance(second, torch.Tensor) or first.shape != second.shape or first.dtype != second.dtype:
            return NotImplemented
        if torch.is_grad_enabled() or not _dense(first):
            return NotImplemented
        uses = _uses(first)
        if self._alone is None:
            self._alone = uses
        if any(now > alone for now, alone in zip(uses, self._alone, strict=True)):
            return NotImplemented
        if self._made_in.get(self._recorder.storages.find(first)) == self._evaluation():
            return NotImplemented
        return first

    def calibrate(self) -> None:
        """Learn how many references a gradient has that only the engine has: it depends on the versions of both.

        Must run under the mode, before anything is of interest.
        """
        leaf = torch.ones(2, 2, device="cuda", requires_grad=True)
        middle = leaf * 2
        (middle.exp() * middle.sin()).sum().backward()
        if self._alone is None:
            raise RuntimeError("the autograd engine adds gradients in another way than expected")


def _dense(tensor: Any) -> bool:
    """Whether a tensor fills its memory without overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _uses(tensor: Any) -> tuple[int, int, int]:
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(tensor)
