"""Sequences of different lengths in one tensor, without padding: what `pack_padded_sequence` makes of a batch.

PyTorch's operators read the lengths to know how much memory to take. What stands here are the steps of the C++ code
(`PackedSequence.cpp`), with the lengths where they are known, else with sequences as long as they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuheap._fit.known import numbers

__all__ = ["packing"]

_NAMES = ("_pack_padded_sequence", "_pad_packed_sequence")


@contextmanager
def packing(unknown: Callable[[int], None]) -> Iterator[None]:
    """Let sequences be packed; ``unknown`` hears of bytes whose number depends on lengths that nobody knows."""
    functions: Any = torch._VF
    before = {name: getattr(functions, name) for name in _NAMES}

    def pack(source: Any, lengths: Any, batch_first: bool) -> Any:
        if not isinstance(source, FakeTensor):
            return before["_pack_padded_sequence"](source, lengths, batch_first)
        steps, samples = source.size(1 if batch_first else 0), source.size(0 if batch_first else 1)
        sizes = _sizes(lengths)
        if sizes is None:
            sizes = [samples] * steps
            unknown(source.numel() * source.element_size())
        return _Pack.apply(source, sizes, batch_first), torch.tensor(sizes, dtype=torch.int64)

    def pad(data: Any, sizes: Any, batch_first: bool, value: float, total: int) -> Any:
        known = numbers(sizes) if isinstance(sizes, FakeTensor) else sizes
        if not isinstance(data, FakeTensor) or known is None:
            return before["_pad_packed_sequence"](data, sizes, batch_first, value, total)
        each = [int(one) for one in _listed(known)]
        steps = max(len(each), total)
        out = torch.full((steps, each[0], *data.shape[1:]), value, dtype=data.dtype, device=data.device)
        at = 0
        for first, last, size in _runs(each):
            count = (last - first) * size
            out[first:last, :size].copy_(data[at : at + count].view(last - first, size, *data.shape[1:]))
            at += count
        lengths = [sum(size > sample for size in each) for sample in range(each[0])]
        return out.transpose(0, 1) if batch_first else out, torch.tensor(lengths, dtype=torch.int64)

    setattr(functions, _NAMES[0], pack)
    setattr(functions, _NAMES[1], pad)
    try:
        yield
    finally:
        for name in _NAMES:
            delattr(functions, name)


class _Pack(torch.autograd.Function):  # type: ignore[misc]
    """Sequences, longest first, time by time: of each time those that are not over yet."""

    @staticmethod
    def forward(ctx: Any, source: Any, sizes: list[int], batch_first: bool) -> Any:
        ctx.shape, ctx.sizes, ctx.batch_first = source.shape, sizes, batch_first
        ordered = source.transpose(0, 1) if batch_first else source
        parts = [
            ordered[first:last, :size].contiguous().view(-1, *ordered.shape[2:]) for first, last, size in _runs(sizes)
        ]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        shape = ctx.shape
        steps, samples = (shape[1], shape[0]) if ctx.batch_first else shape[:2]
        out = gradient.new_zeros((steps, samples, *shape[2:]))
        at = 0
        for first, last, size in _runs(ctx.sizes):
            count = (last - first) * size
            out[first:last, :size].copy_(gradient[at : at + count].view(last - first, size, *shape[2:]))
            at += count
        return out.transpose(0, 1) if ctx.batch_first else out, None, None


def _listed(tensor: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        return tensor.tolist()


def _sizes(lengths: Any) -> list[int] | None:
    """How many sequences there are at each time; None where the lengths are not known."""
    known = numbers(lengths) if isinstance(lengths, FakeTensor) else lengths
    if known is None:
        return None
    each = [int(one) for one in _listed(known)]
    return [sum(length > time for length in each) for time in range(max(each, default=0))]


def _runs(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Times in a row with the same sequences: the first, the one after the last, and how many sequences."""
    first = 0
    for time in range(1, len(sizes) + 1):
        if time == len(sizes) or sizes[time] != sizes[first]:
            yield first, time, sizes[first]
            first = time
