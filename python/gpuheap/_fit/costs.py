"""What an operator costs: floating-point operations and bytes that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuheap._fit.collectives import is_exchange, wire_bytes

__all__ = ["Costs"]


class Costs:
    """Costs of operators: by `torch.utils.flop_counter`, but for some that it lacks or counts too high."""

    def __init__(self) -> None:
        """Take the formulas of this PyTorch."""
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry

    def of(
        self, func: Any, args: Any, kwargs: Any, out: Any, tensors: list[Any], results: list[Any]
    ) -> tuple[int, int, int]:
        """FLOP, bytes read, bytes written.

        Of an exchange between ranks they are the bytes that this rank sends and receives.

        What an operator changes in place is read and written; views move nothing. Bytes are those of the elements that
        tensors show, not of their storages. A tensor that is read across, as by a copy that transposes, is read in
        pieces of which one number each is used.
        """
        if func.is_view:
            return 0, 0, 0
        if is_exchange(func):
            return wire_bytes(func, args, tensors, out)
        flops = 0
        formula = self._formulas.get(func._overloadpacket)
        name = func._overloadpacket.__name__
        own = _OWN.get(name) or (_attention if "scaled_dot_product" in name else None)
        if formula is not None or own is not None:
            try:
                flops = int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0
                if own is not None:
                    flops = int(own(flops, _named(func, args, kwargs), out))
            except Exception:
                # The formulas take the forms of arguments that PyTorch's own layers use; costs are estimates anyway.
                flops = 0
        read = sum(map(_size, tensors))
        written = sum(map(_size, results))
        if not flops and results:
            read += sum(_across(tensor, results[0]) for tensor in tensors)
        return flops, read, written


_SECTOR = 32
"""Bytes that a GPU reads at once, of which a kernel that goes across the order of a tensor uses one number."""


def _across(tensor: Any, result: Any) -> int:
    """Bytes that are read beside those of the tensor, where a result of its shape is written in another order."""
    if tensor.shape != result.shape or tensor.dim() < 2:
        return 0
    own, other = _innermost(tensor), _innermost(result)
    if own is None or other is None or own == other:
        return 0
    return int(tensor.numel()) * max(_SECTOR - int(tensor.element_size()), 0)


def _innermost(tensor: Any) -> int | None:
    """The dimension whose numbers are next to each other; none if there is only one number, or no such dimension."""
    lines = zip(tensor.shape, tensor.stride(), strict=True)
    found = [dimension for dimension, (length, stride) in enumerate(lines) if length > 1 and stride == 1]
    return found[0] if found else None


def _size(tensor: Any) -> int:
    # Expanded dimensions are read once.
    size: int = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or length == 0:
            size *= length
    return size


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments by the names that the operator's schema has."""
    names = [argument.name for argument in func._schema.arguments]
    given: dict[str, Any] = {argument.name: argument.default_value for argument in func._schema.arguments}
    return {**given, **dict(zip(names, args, strict=False)), **kwargs}


def _convolution_backward(_flops: int, given: dict[str, Any], _out: Any) -> int:
    # Each gradient costs what the forward pass does. PyTorch's formula counts that of the weights once for each group
    # and once more for each.
    small = given["input"] if given["transposed"] else given["grad_output"]
    weight = given["weight"]
    pixels = small.numel() // small.shape[1]
    return 2 * int(pixels) * int(weight.numel()) * sum(map(bool, given["output_mask"][:2]))


_TILE = 128
"""Rows and columns of scores that attention kernels work on at once."""


def _attention(flops: int, given: dict[str, Any], _out: Any) -> int:
    # Half of the scores are masked; the kernels leave them out but for the tiles that the diagonal goes through.
    if not given.get("is_causal"):
        return flops
    rows, columns = given["query"].shape[-2], given["key"].shape[-2]
    done = columns - rows / 2 + _TILE if rows <= columns else columns / 2 + _TILE
    return int(flops * min(1.0, done / max(columns, 1)))


def _recurrent(_flops: int, given: dict[str, Any], _out: Any) -> int:
    rows = given["input"].numel() // given["input"].shape[-1]
    return 2 * int(rows) * sum(int(weight.numel()) for weight in given["weight"] if weight.dim() > 1)


def _recurrent_backward(flops: int, given: dict[str, Any], out: Any) -> int:
    return 2 * _recurrent(flops, given, out)


def _grouped(_flops: int, given: dict[str, Any], out: Any) -> int:
    # One of the two may be a stack of matrices; what is summed over is the last dimension of the first in any case.
    first, second = given["self"], given["mat2"]
    if first.dim() == 2 and second.dim() == 2:
        # The rows that are summed over belong to one group each.
        return 2 * int(first.numel()) * int(second.shape[-1])
    return 2 * int(out.numel()) * int(first.shape[-1])


_OWN: dict[str, Callable[[int, dict[str, Any], Any], int]] = {
    "convolution_backward": _convolution_backward,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "_grouped_mm": _grouped,
}
