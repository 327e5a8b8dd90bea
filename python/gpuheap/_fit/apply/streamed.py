"""The state of an optimizer kept in another form between steps, and brought back piece by piece at the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from gpuheap._fit.apply.steps import only, pieces, plain_step, replace_step
from gpuheap._fit.apply.target import Target

__all__ = ["Form", "stream"]


class Form(Protocol):
    """How a state tensor is kept between steps."""

    def packs(self, value: Any, parameter: Any) -> bool:
        """Whether this entry of a parameter's state is kept in this form."""
        ...

    def pack(self, value: Any, before: Any) -> Any:
        """The kept form of a value; ``before`` is what was kept until now, to be used again, or None."""
        ...

    def unpack(self, kept: Any, parameter: Any) -> Any:
        """The value of the kept form."""
        ...

    def finish(self) -> None:
        """All is packed: wait for what is on its way."""
        ...


def stream(target: Target, optimizer: Any, form: Form, chunk_bytes: int) -> None:
    """Keep the state in this form; a step has that of ``chunk_bytes`` of parameters in the usual form at a time."""
    step = plain_step(optimizer)
    for parameter, state in optimizer.state.items():
        _pack(form, parameter, state, {}, target.undo_by)

    def by_pieces(self: Any) -> None:
        for piece in pieces(self, chunk_bytes):
            # What the piece before left goes first: in the first step nothing is unpacked, and all would pile up.
            form.finish()
            with_gradient = [parameter for parameter in piece if parameter.grad is not None]
            if not with_gradient:
                continue
            kept = [dict(self.state[parameter]) if parameter in self.state else {} for parameter in with_gradient]
            for parameter in with_gradient:
                if parameter in self.state:
                    _unpack(form, parameter, self.state[parameter])
            with only(self, with_gradient):
                step(self)
            for parameter, before in zip(with_gradient, kept, strict=True):
                _pack(form, parameter, self.state[parameter], before, None)
        form.finish()

    replace_step(target, optimizer, by_pieces)


def _pack(
    form: Form, parameter: Any, state: dict[str, Any], before: dict[str, Any], undo_by: Callable[..., None] | None
) -> None:
    for name, value in list(state.items()):
        if isinstance(value, torch.Tensor) and form.packs(value, parameter):
            if undo_by is not None:
                undo_by(partial(state.update, {name: value}))
            kept = before.get(name)
            state[name] = form.pack(value, kept if isinstance(kept, torch.Tensor) else None)


def _unpack(form: Form, parameter: Any, state: dict[str, Any]) -> None:
    for name, kept in list(state.items()):
        if isinstance(kept, torch.Tensor) and kept.shape == parameter.shape:
            state[name] = form.unpack(kept, parameter)
