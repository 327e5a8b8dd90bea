"""`linear` over inputs that are not contiguous: the bias is added to the product in place.

For subclasses of tensors, such as fake ones, PyTorch adds it to a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["add_bias", "adding_in_place"]

_ADD = torch.ops.aten.add.Tensor
_inside: list[bool] = []


@contextmanager
def adding_in_place() -> Iterator[None]:
    """Mark when `linear` runs."""
    before = torch.nn.functional.linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if bias is None or input.dim() < 3:
            return before(input, weight, bias)
        _inside.append(True)
        try:
            return before(input, weight, bias)
        finally:
            _inside.pop()

    torch.nn.functional.linear = linear
    torch._C._nn.linear = linear
    try:
        yield
    finally:
        torch.nn.functional.linear = before
        torch._C._nn.linear = before
        _inside.clear()


def add_bias(mode: Any, func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """The product itself, with the bias in it, if this is the addition within `linear`; else `NotImplemented`."""
    if func is not _ADD or not _inside or len(args) != 2 or not isinstance(args[1], torch.Tensor) or args[1].dim() != 1:
        return NotImplemented
    with mode:
        return args[0].view(args[0].shape)
