"""Numbers of whole-number and boolean tensors on the GPU that came from known ones: masks of ones, positions.

Programs look at them to choose what to do, such as to leave out a mask without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["follow", "numbers"]

_MOST = 1 << 20
"""Tensors with more elements are not followed."""

_NAME = "_gpuheap_numbers"
_aten = torch.ops.aten
_FOLLOWED = frozenset(
    (
        "_to_copy",
        "clone",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "slice",
        "select",
        "expand",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "sum",
        "all",
        "any",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "bitwise_not",
        "logical_and",
        "bitwise_and",
        "bitwise_or",
        "logical_or",
        "cumsum",
        "max",
        "min",
        "add",
        "sub",
        "mul",
    )
)


_CUT = frozenset(("split", "split_with_sizes", "unbind"))
"""Those with a list of results: `chunk` is one of them by the time it is run."""
_MADE = frozenset(("full", "ones", "zeros", "arange"))


def numbers(tensor: Any) -> Any:
    """The numbers of a tensor as a real tensor on the host, or None."""
    return getattr(tensor, "constant", None) if getattr(tensor, _NAME, None) is None else getattr(tensor, _NAME)


def follow(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Compute a result's numbers, if those of all arguments are known."""
    if func.overloadpacket.__name__ in _CUT:
        _cut(func, args, kwargs, out)
        return
    if not isinstance(out, FakeTensor) or out.fake_device.type != "cuda" or not args:
        return
    if func.overloadpacket.__name__ in _MADE:
        _made(func, args, kwargs, out)
        return
    if out.is_floating_point() or out.numel() > _MOST or func.overloadpacket.__name__ not in _FOLLOWED:
        return
    real = []
    for one in args:
        if isinstance(one, FakeTensor):
            found = numbers(one)
            if found is None:
                return
            real.append(found)
        else:
            real.append(one)
    if not any(isinstance(one, torch.Tensor) for one in real):
        return
    named = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "non_blocking")}
    if any(isinstance(value, torch.Tensor) for value in named.values()):
        return
    with torch._C._DisableTorchDispatch():
        setattr(out, _NAME, func(*real, **named))


def _cut(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Parts of a tensor, such as of a batch whose gradients add up."""
    whole = numbers(args[0]) if isinstance(args[0], FakeTensor) else None
    if whole is None:
        return
    with torch._C._DisableTorchDispatch():
        for part, real in zip(out, func(whole, *args[1:], **kwargs), strict=True):
            if isinstance(part, FakeTensor) and part.fake_device.type == "cuda":
                setattr(part, _NAME, real)


def _made(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """What a program makes on the GPU out of nothing."""
    if out.is_floating_point() or out.numel() > _MOST:
        return
    with torch._C._DisableTorchDispatch():
        setattr(out, _NAME, func(*args, **{**kwargs, "device": torch.device("cpu")}))
