"""Tells the phases of a training step apart, and what each held at most.

A step begins forward; a backward pass begins where autograd is asked for one, and goes on in parts, told apart by
hooks on some of the parameters; optimizers say themselves when they step. Nothing of the program is changed for that,
and none of it allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from gpuheap._batch.meter import Meter
from gpuheap._batch.search import FIRST_STEP

__all__ = ["Phases", "merged"]

# Parts of the backward pass. Its peak can be at its beginning, where all activations live, or at its end, where all
# gradients do: two straight lines, of which a single one would show the maximum only.
_PARTS = 8


class Phases:
    """The peaks of each phase while it is entered; see :meth:`peaks`."""

    def __init__(self, torch: Any, meter: Meter) -> None:
        """Begin with `build`: the making of model, optimizer and batch."""
        self._torch = torch
        self._meter = meter
        self._undo: list[Callable[[], object]] = []
        self._peaks: dict[str, int] = {}
        self._phase = "build"
        self._suffix = ""
        self._backwards = 0
        self._held = 0
        self._made: dict[int, int] = {}
        self.reserved = 0
        self.start = 0
        self.optimizers: dict[str, None] = {}

    @property
    def phase(self) -> str:
        """The phase that is under way, the parts of a backward pass as one."""
        return self._phase.partition(" ")[0]

    @property
    def optimizer_steps(self) -> int:
        """How many steps the optimizers have made: that with the fewest counts."""
        return min(self._made.values(), default=0)

    def peaks(self, complete: bool) -> dict[str, int]:
        """Bytes by phase; without the one under way if the run has failed in it."""
        if complete:
            self._close()
        else:
            self._peaks.pop(self._phase + self._suffix, None)
        return dict(self._peaks)

    def begin_step(self, number: int) -> None:
        """A step begins; the first is number 0."""
        self._enter("forward", FIRST_STEP if number == 0 else "")
        self.start = self._held

    def end_step(self) -> None:
        """The step has ended."""
        self._close()

    # Hooks.

    def watch_calls(self) -> None:
        """See from now on where backward passes and optimizers begin and end."""
        autograd = self._torch.autograd
        for name in ("backward", "grad"):
            original = getattr(autograd, name)
            setattr(autograd, name, self._backward(original))
            self._undo.append(partial(setattr, autograd, name, original))
        optimizer: Any = import_module("torch.optim.optimizer")
        before = optimizer.register_optimizer_step_pre_hook(lambda *_: self._enter("optimizer"))
        after = optimizer.register_optimizer_step_post_hook(self._after_optimizer)
        self._undo += [before.remove, after.remove]

    def watch_parameters(self, parameters: list[Any]) -> None:
        """See from now on how far a backward pass has come."""
        count = min(_PARTS - 1, len(parameters))
        for part in range(1, count + 1):
            # Gradients arrive from the last parameter to the first.
            parameter = parameters[len(parameters) - len(parameters) * part // (count + 1) - 1]
            handle = parameter.register_hook(lambda _, part=part: self._part(part))
            self._undo.append(handle.remove)

    def close(self) -> None:
        """Undo all of that."""
        while self._undo:
            self._undo.pop()()

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            # Checkpoints call for backward passes within one.
            if self._backwards == 0:
                self._enter("backward 0")
            self._backwards += 1
            try:
                result = original(*args, **kwargs)
            except BaseException:
                # The phase stays: the error arose in it.
                self._backwards -= 1
                raise
            self._backwards -= 1
            if self._backwards == 0:
                self._enter("rest")
            return result

        return backward

    def _part(self, part: int) -> None:
        if self._backwards:
            self._enter(f"backward {part}")

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._enter("rest")
        self._made[id(optimizer)] = self._made.get(id(optimizer), 0) + 1
        self.optimizers[type(optimizer).__name__] = None

    # Phases.

    def _enter(self, phase: str, suffix: str | None = None) -> None:
        self._close()
        self._phase = phase
        if suffix is not None:
            self._suffix = suffix

    def _close(self) -> None:
        counts = self._meter.counts()
        name = self._phase + self._suffix
        self._peaks[name] = max(self._peaks.get(name, 0), counts.peak)
        self.reserved = max(self.reserved, counts.reserved)
        self._held = counts.allocated


def merged(peaks: dict[str, int]) -> dict[str, int]:
    """Phases for people: the parts of the backward pass, and the first step and later ones, as one each."""
    result: dict[str, int] = {}
    for name, peak in peaks.items():
        phase = name.partition(FIRST_STEP)[0].partition(" ")[0]
        result[phase] = max(result.get(phase, 0), peak)
    return result
