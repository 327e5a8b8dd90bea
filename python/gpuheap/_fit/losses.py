"""Losses whose memory is not that of their results.

Of some the one number keeps the memory of all of theirs.
PyTorch computes them for every element into the result and shrinks it to one number afterwards, which leaves the
storage as large as it was (`Loss.cpp`, `Loss.cu`; the same on the CPU). Its own fake tensors have it small at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpuheap._fit.known import numbers

__all__ = ["run"]

_aten = torch.ops.aten
_REDUCTION = {
    _aten.mse_loss.default: 2,
    _aten.smooth_l1_loss.default: 2,
    _aten.soft_margin_loss.default: 2,
    _aten.binary_cross_entropy.default: 3,
}
"""Where the kind of reduction stands among the arguments; the mean is what is meant where it is left out."""
_MEAN = 1


_CTC = frozenset((_aten._ctc_loss.default, _aten._ctc_loss.Tensor))
_CTC_BACKWARD = frozenset((_aten._ctc_loss_backward.default, _aten._ctc_loss_backward.Tensor))
_CTC_OF_LIBRARIES = frozenset(
    overload
    for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
    if hasattr(_aten, name)
    for overload in (getattr(_aten, name).default, getattr(_aten, name).Tensor)
)


def run(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The loss in a storage of the size that it has on the GPU; else `NotImplemented`."""
    if func in _CTC_OF_LIBRARIES:
        # cuDNN's is for labels of 32 bits on the host alone.
        return False
    if func in _CTC:
        return _ctc(mode, *args[:4])
    if func in _CTC_BACKWARD:
        with mode:
            return torch.empty_like(args[1], memory_format=torch.contiguous_format)
    at = _REDUCTION.get(func)
    if at is None or args[0].device.type != "cuda":
        return NotImplemented
    if not (args[at] if len(args) > at else kwargs.get("reduction", _MEAN)):
        return NotImplemented
    source, target = args[0], args[1]
    with mode:
        shape = torch.broadcast_shapes(source.shape, target.shape)
        whole = torch.empty(shape, dtype=torch.result_type(source, target), device=source.device)
        return whole.as_strided((), ()) if whole.numel() else NotImplemented


def _ctc(mode: Any, scores: Any, labels: Any, _times: Any, lengths: Any) -> Any:
    """The loss of each sample, and the logarithms of all paths, which the backward pass needs (`LossCTC.cu`)."""
    steps, samples = scores.size(0), scores.size(1)
    if isinstance(lengths, (tuple, list)):
        longest = max(lengths, default=0)
    else:
        known = numbers(lengths)
        # A row has one sample's labels; in one list all of them could be of one sample.
        longest = labels.size(-1) if known is None else int(max(known.tolist(), default=0))
    with mode:
        loss = torch.empty((samples,), dtype=scores.dtype, device=scores.device)
        paths = torch.empty((samples, steps, 2 * longest + 1), dtype=scores.dtype, device=scores.device)
    return loss, paths
