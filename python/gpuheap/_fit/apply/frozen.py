"""A linear layer whose frozen weight has 8 or 4 bits, and that gradients pass through to its input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["FrozenLinear"]


class FrozenLinear(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Weights as whole numbers with a scale for each group of inputs; they exist in full while they are used alone.

    4 bits are two to a byte. The bias stays what it was, trainable if it was.
    """

    def __init__(self, packed: Any, scale: Any, bias: Any, bits: int, shape: tuple[int, int]) -> None:
        """Take the parts; see :meth:`of`."""
        super().__init__()
        self.bits = bits
        self.out_features, self.in_features = shape
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.bias = bias

    @classmethod
    def of(cls, linear: Any, bits: int, group: int) -> FrozenLinear:
        """Quantize a `torch.nn.Linear` to the nearest, symmetrically; one scale a row where groups do not divide it."""
        weight = linear.weight.detach()
        rows, columns = weight.shape
        size = group if bits == 4 and columns % group == 0 else columns
        largest = (1 << (bits - 1)) - 1
        grouped = weight.float().reshape(rows, columns // size, size)
        scale = grouped.abs().amax(2, keepdim=True).clamp_(min=1e-12) / largest
        numbers = (grouped / scale).round_().clamp_(-largest, largest).to(torch.int8).reshape(rows, columns)
        if bits == 4:
            if columns % 2:
                numbers = F.pad(numbers, (0, 1))
            nibbles = (numbers + 8).to(torch.uint8)
            numbers = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
        return cls(numbers.contiguous(), scale.squeeze(2).to(weight.dtype), linear.bias, bits, (rows, columns))

    def weight_in_full(self) -> Any:
        """The weight as numbers of the type that the layer had."""
        numbers = self.packed
        if self.bits == 4:
            low, high = (numbers & 15).to(torch.int8) - 8, (numbers >> 4).to(torch.int8) - 8
            numbers = torch.stack((low, high), 2).reshape(self.out_features, -1)[:, : self.in_features]
        grouped = numbers.reshape(self.out_features, self.scale.shape[1], -1).to(self.scale.dtype)
        return (grouped * self.scale.unsqueeze(2)).reshape(self.out_features, self.in_features)

    @property
    def weight(self) -> Any:
        """What others ask a linear layer for, such as its type or device."""
        return self.weight_in_full()

    def forward(self, inputs: Any) -> Any:
        """`F.linear`, with the weight made again in the backward pass."""
        bias = self.bias
        if torch.is_autocast_enabled(inputs.device.type):
            inputs = inputs.to(torch.get_autocast_dtype(inputs.device.type))
            bias = None if bias is None else bias.to(inputs.dtype)
        output = _Linear.apply(inputs, self)
        return output if bias is None else output + bias

    def extra_repr(self) -> str:
        """Show sizes and bits."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}"


class _Linear(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    @staticmethod
    def forward(ctx: Any, inputs: Any, layer: FrozenLinear) -> Any:
        ctx.layer = layer
        with torch.autocast(inputs.device.type, enabled=False):
            return inputs @ layer.weight_in_full().to(inputs.dtype).t()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with torch.autocast(gradient.device.type, enabled=False):
            return gradient @ ctx.layer.weight_in_full().to(gradient.dtype), None
