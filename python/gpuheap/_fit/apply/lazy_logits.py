"""Logits that are not there: the result of a model's last layer, until somebody needs more than their cross entropy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from gpuheap._fit.apply.chunked import linear_cross_entropy

__all__ = ["LazyLogits"]


class LazyLogits(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """``F.linear(hidden, weight, bias)``, not computed.

    Models cut, reshape and upcast logits before they give them to `cross_entropy`: all of that is done to ``hidden``
    instead, and the cross entropy is taken by chunks. Any other use computes the logits first, so that nothing that
    worked stops working.
    """

    hidden: Any
    weight: Any
    bias: Any
    chunks: int

    @staticmethod
    def __new__(cls, hidden: Any, weight: Any, bias: Any, chunks: int, dtype: Any = None) -> LazyLogits:
        """Only shape, type and device of the logits; nothing is allocated."""
        logits = torch.Tensor._make_wrapper_subclass(
            cls,
            (*hidden.shape[:-1], weight.shape[0]),
            dtype=dtype or hidden.dtype,
            device=hidden.device,
            requires_grad=torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad),
        )
        logits.hidden, logits.weight, logits.bias, logits.chunks = hidden, weight, bias, chunks
        return logits  # type: ignore[no-any-return, unused-ignore]

    def computed(self) -> Any:
        """The logits themselves."""
        with torch.autocast(self.hidden.device.type, enabled=False):
            logits = F.linear(self.hidden, self.weight, self.bias)
        return logits.to(self.dtype)

    def _with(self, hidden: Any, dtype: Any = None) -> LazyLogits:
        return LazyLogits(hidden, self.weight, self.bias, self.chunks, dtype or self.dtype)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Do what leaves the classes alone to ``hidden``."""
        named = named or {}
        handler = _HANDLERS.get(function)
        if handler is not None and isinstance(arguments[0] if arguments else None, LazyLogits):
            result = handler(*arguments, **named)
            if result is not NotImplemented:
                return result
        if function in _PASSED:
            return super().__torch_function__(function, types, arguments, named)
        arguments, named = torch.utils._pytree.tree_map_only(LazyLogits, LazyLogits.computed, (arguments, named))
        return function(*arguments, **named)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """What gets here was called below PyTorch's functions: with computed logits."""
        arguments, named = torch.utils._pytree.tree_map_only(LazyLogits, LazyLogits.computed, (arguments, named or {}))
        return function(*arguments, **named)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        """Say what it is without computing it."""
        return f"LazyLogits(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"


def _view(logits: LazyLogits, *shape: Any, **named: Any) -> Any:
    if named or not shape or isinstance(shape[0], torch.dtype):
        return NotImplemented
    sizes = list(shape[0] if isinstance(shape[0], (tuple, list, torch.Size)) else shape)
    classes = logits.shape[-1]
    if sizes[-1] == -1 and len(sizes) > 1:
        # The rest is classes only if the other sizes say so.
        rest = logits.numel()
        for size in sizes[:-1]:
            rest = rest // size if size > 0 else -1
        sizes[-1] = rest
    if len(sizes) < 2 or sizes[-1] != classes or sizes.count(-1) > 1:
        return NotImplemented
    return logits._with(logits.hidden.reshape(*sizes[:-1], logits.hidden.shape[-1]))


def _flatten(logits: LazyLogits, start_dim: int = 0, end_dim: int = -1) -> Any:
    dims = logits.dim()
    if not -dims <= start_dim < dims or not -dims <= end_dim < dims or end_dim % dims == dims - 1:
        return NotImplemented
    return logits._with(logits.hidden.flatten(start_dim % dims, end_dim % dims))


def _item(logits: LazyLogits, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is None or isinstance(part, torch.Tensor) for part in parts):
        return NotImplemented
    whole = slice(None)
    if any(part is Ellipsis for part in parts):
        place = next(number for number, part in enumerate(parts) if part is Ellipsis)
        filled = logits.dim() - (len(parts) - 1)
        parts = (*parts[:place], *[whole] * filled, *parts[place + 1 :])
    if len(parts) == logits.dim():
        if parts[-1] != whole:
            return NotImplemented
    elif len(parts) > logits.dim():
        return NotImplemented
    if all(isinstance(part, (int, slice)) for part in parts):
        return logits._with(logits.hidden[parts])
    return NotImplemented


def _cast(dtype: Any) -> Any:
    def cast(logits: LazyLogits) -> Any:
        return logits._with(logits.hidden, dtype)

    return cast


def _to(logits: LazyLogits, *arguments: Any, **named: Any) -> Any:
    wanted = [*arguments, *named.values()]
    dtype = next((one for one in wanted if isinstance(one, torch.dtype)), None)
    others = [one for one in wanted if not isinstance(one, (torch.dtype, bool))]
    if any(torch.device(one) != logits.device for one in others if isinstance(one, (str, torch.device))) or any(
        isinstance(one, torch.Tensor) for one in others
    ):
        return NotImplemented
    return logits._with(logits.hidden, dtype)


def _same(logits: LazyLogits, **_: Any) -> Any:
    return logits


def _cross_entropy(
    logits: LazyLogits,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if logits.dim() != 2 or target.dim() != 1 or target.is_floating_point():
        return NotImplemented
    if size_average is not None or reduce is not None:
        return NotImplemented
    # Autocast takes cross entropy in float32; without it the type of the logits decides.
    upcast = logits.dtype == torch.float32 or torch.is_autocast_enabled(logits.device.type)
    return linear_cross_entropy(
        logits.hidden,
        logits.weight,
        target,
        logits.bias,
        chunks=logits.chunks,
        class_weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        upcast=upcast,
    )


_HANDLERS = {
    F.cross_entropy: _cross_entropy,
    torch.Tensor.view: _view,
    torch.Tensor.reshape: _view,
    torch.reshape: _view,
    torch.Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    torch.Tensor.__getitem__: _item,
    torch.Tensor.float: _cast(torch.float32),
    torch.Tensor.to: _to,
    torch.Tensor.contiguous: _same,
}

# What is known without the values.
_PASSED = {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.is_floating_point,
    torch.Tensor.element_size,
    torch.Tensor.stride,
    torch.Tensor.is_contiguous,
    torch.Tensor.__len__,
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("shape", "dtype", "device", "requires_grad", "layout", "ndim", "is_cuda", "is_sparse", "is_leaf")
        if hasattr(getattr(torch.Tensor, name), "__get__")
    ),
}
