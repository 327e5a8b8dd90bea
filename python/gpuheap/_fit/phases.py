"""Which phase of a step the program is in, from what it calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuheap._fit.engine import Engine
from gpuheap._fit.recorder import Recorder

__all__ = ["Phases"]

_NEW = {"forward": "activation", "loss": "activation", "evaluation": "temporary", "load": "input"}


class Phases:
    """Follows optimizers and the engine."""

    def __init__(self, recorder: Recorder, engine: Engine) -> None:
        """Write phases to a recorder."""
        self._recorder = recorder
        self._engine = engine
        engine.on_begin = lambda: self.begin("backward")
        self._depth = 0

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self._recorder.enter_phase(phase, _NEW.get(phase, "temporary"))

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow every optimizer, and modules that run after a backward pass or an optimizer's step."""
        from torch.nn.modules import module as torch_module
        from torch.optim import Optimizer
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
            torch_module.register_module_forward_pre_hook(self._before_module),
        ]
        before = Optimizer.zero_grad

        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if not self._engine.running:
                self.begin("zero_grad")
            before(optimizer, *args, **kwargs)

        Optimizer.zero_grad = zero_grad
        try:
            yield
        finally:
            Optimizer.zero_grad = before
            for hook in hooks:
                hook.remove()

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._engine.running:
            self.begin("optimizer")

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        pass

    def _before_module(self, _module: Any, _args: Any) -> None:
        # A closure of an optimizer runs the model within its step.
        if not self._engine.running and self._recorder.phase in ("backward", "optimizer", "zero_grad", "load"):
            self.begin("forward")
