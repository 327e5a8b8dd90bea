"""What an operator costs: floating-point operations and bytes that it reads and writes."""

from __future__ import annotations

from typing import Any

from gpuheap._fit.collectives import is_exchange, wire_bytes

__all__ = ["Costs"]


class Costs:
    """Costs of operators by the formulas of `torch.utils.flop_counter`."""

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
        tensors show, not of their storages.
        """
        if func.is_view:
            return 0, 0, 0
        if is_exchange(func):
            return wire_bytes(func, args, tensors, out)
        flops = 0
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            try:
                flops = int(formula(*args, **kwargs, out_val=out))
            except Exception:
                # The formulas take the forms of arguments that PyTorch's own layers use; costs are estimates anyway.
                flops = 0
        read = sum(map(_size, tensors))
        written = sum(map(_size, results))
        return flops, read, written


def _size(tensor: Any) -> int:
    # Expanded dimensions are read once.
    size: int = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or length == 0:
            size *= length
    return size
