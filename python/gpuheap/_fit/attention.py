"""`scaled_dot_product_attention` as CUDA carries it out: which kernel, by the rules of `sdp_utils.cpp`.

PyTorch asks the driver for the GPU's properties when it chooses, so without one the choice is made here, and the
operator that was chosen is called as PyTorch's C++ code calls it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuheap._fit.pretend import Gpu

__all__ = ["attending", "choose"]

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def attending(gpu: Gpu) -> Iterator[None]:
    """Let all attention go through the choice that is made here."""
    before = torch.nn.functional.scaled_dot_product_attention
    attend = _attend(gpu, before)
    torch.nn.functional.scaled_dot_product_attention = attend
    torch._C._nn.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = before
        torch._C._nn.scaled_dot_product_attention = before


def _attend(gpu: Gpu, before: Callable[..., Any]) -> Callable[..., Any]:
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if query.device.type != "cuda" or query.is_nested:
            options = {"scale": scale, "enable_gqa": enable_gqa}
            return before(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if torch.is_autocast_enabled("cuda"):
            query, key, value, attn_mask = map(_autocast, (query, key, value, attn_mask))
            with torch.autocast("cuda", enabled=False):
                return _run(gpu, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _run(gpu, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    return scaled_dot_product_attention


def _autocast(tensor: Any) -> Any:
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype("cuda"))


def _run(
    gpu: Gpu,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    kernel = choose(gpu, query, key, value, mask, dropout, causal, grouped)
    if mask is not None and mask.dtype == torch.bool:
        # In C++, too, the mask becomes one to add, whatever the kernel.
        floats = torch.zeros_like(mask, dtype=query.dtype)
        floats.masked_fill_(mask.logical_not(), -math.inf)
        mask = floats
    aten = torch.ops.aten
    gradient = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    if mask is not None:
        gradient = gradient or (torch.is_grad_enabled() and mask.requires_grad)
    if kernel == "flash":
        width = query.size(-1)
        factor = 1 / math.sqrt(width) if scale is None else scale
        padded = [_pad(one, 8) for one in (query, key, value)]
        out = aten._scaled_dot_product_flash_attention(*padded, dropout, causal, False, scale=factor)[0]
        return out[..., :width] if out.size(-1) != width else out
    if kernel == "efficient":
        if mask is not None:
            mask = _aligned(mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, gradient, dropout, causal, scale=scale
        )[0]
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, gradient, dropout, causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=grouped
    )[0]


def _pad(tensor: Any, multiple: int) -> Any:
    rest = tensor.size(-1) % multiple
    return torch.nn.functional.pad(tensor, (0, multiple - rest)) if rest else tensor


def _aligned(mask: Any, query: Any, key: Any) -> Any:
    """The mask as the memory-efficient kernel takes it: rows that begin at multiples of 16 elements, expanded."""
    length = mask.size(-1)
    if length % 16:
        mask = _pad(mask, 16)[..., :length]
    batch, heads, rows, columns = query.size(0), query.size(1), query.size(2), key.size(2)
    return mask.expand(batch, heads, rows, columns)


def choose(gpu: Gpu, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, grouped: bool) -> str:
    """The kernel: `flash`, `efficient`, `cudnn` or `math`."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return "math"
    allowed = torch.backends.cuda
    tests = {
        "flash": (allowed.flash_sdp_enabled, _flash),
        "cudnn": (allowed.cudnn_sdp_enabled, _cudnn),
        "efficient": (allowed.mem_efficient_sdp_enabled, _efficient),
    }
    order = ["flash", "cudnn", "efficient"]
    if _prefers_cudnn(gpu):
        order = ["cudnn", "flash", "efficient"]
    gradient = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    for name in order:
        enabled, fits = tests[name]
        if enabled() and fits(gpu, query, key, value, mask, dropout, causal, grouped, gradient):
            return name
    return "math"


def _prefers_cudnn(gpu: Gpu) -> bool:
    """The data center cards of compute capability 9.0 and 10.0 run cuDNN's kernel first, with a cuDNN from 9.15 on."""
    if os.environ.get("TORCH_CUDNN_SDPA_PREFERRED") == "0" or gpu.capability not in ((9, 0), (10, 0)):
        return False
    version = _cudnn_version()
    return version is None or version >= 91500


@functools.cache
def _cudnn_version() -> int | None:
    """The version of cuDNN; None without it, or where PyTorch refuses the one that it finds here."""
    try:
        found: int | None = torch.backends.cudnn.version()
    except RuntimeError:
        return None
    return found


def _dense_last(*tensors: Any) -> bool:
    return all(one.stride(-1) == 1 or one.size(-1) == 1 for one in tensors)


def _same_heads(query: Any, key: Any, value: Any, grouped: bool) -> bool:
    if query.size(0) != key.size(0) or query.size(0) != value.size(0) or key.size(1) != value.size(1):
        return False
    return query.size(1) == key.size(1) or (grouped and query.size(1) % key.size(1) == 0)


def _flash(
    gpu: Gpu, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, grouped: bool, gradient: bool
) -> bool:
    width = query.size(-1)
    if mask is not None or query.dtype not in _HALF or key.dtype != query.dtype or value.dtype != query.dtype:
        return False
    if gpu.capability < (8, 0) or width > 256 or width != key.size(-1) or width != value.size(-1):
        return False
    if gradient and width > 192 and dropout > 0 and gpu.capability in ((8, 6), (8, 9), (12, 0)):
        return False
    return (
        _same_heads(query, key, value, grouped)
        and _dense_last(query, key, value)
        and 0 not in (query.size(2), key.size(2))
    )


def _cudnn(
    gpu: Gpu, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, grouped: bool, gradient: bool
) -> bool:
    if query.dtype not in _HALF or key.dtype != query.dtype or value.dtype != query.dtype:
        return False
    limit = 256 if gpu.capability >= (9, 0) and not gradient else 128
    widths = (query.size(-1), value.size(-1))
    if gpu.capability < (8, 0) or any(width % 8 or width > limit for width in widths):
        return False
    if torch.are_deterministic_algorithms_enabled() or 1 in (query.size(2), key.size(2)):
        return False
    if mask is not None and mask.requires_grad:
        return False
    return _same_heads(query, key, value, grouped) and _dense_last(query, key, value)


def _efficient(
    gpu: Gpu, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, grouped: bool, gradient: bool
) -> bool:
    half = _HALF if gpu.capability >= (8, 0) else (torch.float16,)
    if query.dtype not in (*half, torch.float32) or key.dtype != query.dtype or value.dtype != query.dtype:
        return False
    if gpu.capability < (5, 0) or not _same_heads(query, key, value, False) or not _dense_last(query, key, value):
        return False
    if mask is not None and mask.stride(-1) != 1:
        return False
    # Widths are multiples of 16 bytes, or 4 elements in fp32.
    multiple = 8 if query.dtype in _HALF else 4
    if gpu.capability < (8, 0) and query.dtype == torch.float32:
        multiple = 1
    if any(one.size(-1) % multiple for one in (query, key, value)):
        return False
    if mask is not None and mask.requires_grad and gradient and query.dtype not in (*_HALF, torch.float32):
        return False
    return 0 not in (query.size(2), key.size(2))
