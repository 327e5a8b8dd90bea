"""When a step ends: after an optimizer's, or when the program says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OptimizerSteps"]


class OptimizerSteps:
    """Calls a function after each round of optimizer steps. Nothing of an optimizer is kept but a number.

    Where several optimizers take turns, as in a GAN, a round is one step of the first of them. One that is not seen any
    more has been replaced: whoever steps twice without it takes its place.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        """Registers nothing yet."""
        self._tell = tell
        self._leader: int | None = None
        self._since: set[int] = set()
        self._handle: Any = None

    @property
    def registered(self) -> bool:
        """Whether optimizers are followed."""
        return self._handle is not None

    def start(self) -> None:
        """Follow all optimizers of PyTorch."""
        if self._handle is not None:
            return
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook
        except ImportError:
            return

        def after_step(optimizer: Any, *_: Any) -> None:
            self.stepped(id(optimizer))

        # Compiled steps call it between graphs and not inside one.
        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._handle = register_optimizer_step_post_hook(after_step)

    def stop(self) -> None:
        """Follow them no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def stepped(self, optimizer: int) -> None:
        """One of them has made a step."""
        if optimizer != self._leader:
            if self._leader is not None and optimizer not in self._since:
                self._since.add(optimizer)
                return
            self._leader = optimizer
        self._since.clear()
        self._tell()
