"""What stands in a stage of a pipeline for the parts of the model that other ranks have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError

__all__ = ["Ended", "Passed", "absent", "received", "stand_in"]

_current = threading.local()


class Ended(Exception):
    """The pass of a stage that is not the last ended with this hidden state."""

    def __init__(self, output: Any) -> None:
        """Take the hidden state out of what the last block returned."""
        super().__init__()
        self.hidden = output if isinstance(output, torch.Tensor) else output[0]
        others = () if isinstance(output, torch.Tensor) else output[1:]
        if any(isinstance(other, torch.Tensor) for other in others):
            raise LeverError(
                "pipeline parallelism: blocks hand on more tensors than the hidden state", 'Use {"form": "fsdp2"}.'
            )

    @staticmethod
    @contextmanager
    def with_received(hidden: Any) -> Iterator[None]:
        """The hidden state that the rank before sent, for the first block of this one."""
        _current.hidden = hidden
        try:
            yield
        finally:
            _current.hidden = None


class Passed(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A block that another rank has: hands its input on."""

    def __init__(self, name: str) -> None:
        """Keep the name for messages."""
        super().__init__()
        self.name = name

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Return the hidden state."""
        return arguments[0] if arguments else named["hidden_states"]

    def __getattr__(self, name: str) -> Any:
        """Answer what models ask their blocks, such as `attention_type`: the same as of a block without layers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return None


def received(forward: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A block's forward with the hidden state that was received in place of the one it is given."""

    def with_received(*arguments: Any, **named: Any) -> Any:
        hidden = getattr(_current, "hidden", None)
        if hidden is None:
            raise LeverError(f"pipeline parallelism: `{name}` ran outside of a step", "Call `applied.step(batch)`.")
        if arguments:
            arguments = (hidden, *arguments[1:])
        else:
            named = {**named, "hidden_states": hidden}
        return forward(*arguments, **named)

    return with_received


class _Embedding(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """An embedding that another rank has: zeros of its shape, in the memory of one number."""

    def __init__(self, features: int, dtype: Any, device: Any) -> None:
        super().__init__()
        self.embedding_dim = features
        self.register_buffer("zero", torch.zeros((), dtype=dtype, device=device), persistent=False)

    def forward(self, tokens: Any) -> Any:
        return self.zero.expand(*tokens.shape, self.embedding_dim)


def stand_in(module: Any) -> Any:
    """What is in place of an embedding on ranks whose hidden state comes from others."""
    return _Embedding(module.embedding_dim, module.weight.dtype, module.weight.device)


class _Absent(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *arguments: Any, **named: Any) -> Any:
        raise LeverError(
            f"pipeline parallelism: `{self.name}` runs before the blocks, though it is registered behind them",
            'Use {"form": "fsdp2"}.',
        )


def absent(name: str) -> Any:
    """What is in place of a module that only the last rank runs."""
    return _Absent(name)
