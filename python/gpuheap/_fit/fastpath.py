"""The fast path of PyTorch's transformer layers, which is one operator without a definition for fake tensors.

Layers that are evaluated go through it. What stands here are the steps of the C++ code (`transformers/transformer.cpp`,
`transformers/cuda/attention.cu`), in the order in which they take memory and let go of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["decomposed"]

_ATTENTION = "_native_multi_head_attention"
_LAYER = "_transformer_encoder_layer_fwd"


@contextmanager
def decomposed() -> Iterator[None]:
    """Let evaluated transformer layers run step by step."""
    before = {name: getattr(torch, name) for name in (_ATTENTION, _LAYER)}
    setattr(torch, _ATTENTION, _attention)
    setattr(torch, _LAYER, _layer)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    del mask_type
    width = embed_dim // num_heads
    samples = query.size(0)
    itself = query is key and key is value
    if itself and width % 8 == 0 and not need_weights and mask is None:
        parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        heads = [part.view(samples, -1, num_heads, width).transpose(1, 2) for part in parts]
        del parts
        found = F.scaled_dot_product_attention(*heads)
        del heads
        joined = found.transpose(1, 2).reshape(samples, -1, embed_dim)
        del found
        return F.linear(joined, proj_weight, proj_bias), None
    if itself:
        projected = query.matmul(qkv_weight.t())
    else:
        sides = zip((query, key, value), qkv_weight.chunk(3), strict=True)
        projected = torch.cat([side.matmul(weight.t()) for side, weight in sides], -1)
    # One kernel adds the bias, scales, and puts the heads apart, into one buffer.
    packed = query.new_empty((3, samples, num_heads, projected.size(1), width))
    del projected
    queries, keys, values = packed.unbind()
    scores: Any = queries @ keys.transpose(-1, -2)
    scores = scores.softmax(-1)
    # The result goes where the queries were.
    torch.bmm(scores.flatten(0, 1), values.flatten(0, 1), out=queries.flatten(0, 1))
    if not need_weights:
        scores = None
    joined = queries.transpose(1, 2).reshape(samples, -1, embed_dim)
    out = F.linear(joined, proj_weight, proj_bias)
    return out, scores.mean(1) if need_weights and average_attn_weights else scores


def _layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def norm(value: Any, weight: Any, bias: Any) -> Any:
        return F.layer_norm(value, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    x, _ = _attention(x, x, x, embed_dim, num_heads, *projections, mask, False, True, mask_type)
    x.add_(src)
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    before = x
    if norm_first:
        x = norm(x, norm_weight_2, norm_bias_2)
    inner = torch._addmm_activation(ffn_bias_1, x.flatten(0, -2), ffn_weight_1.t(), use_gelu=use_gelu)
    x = F.linear(inner.view(*x.shape[:-1], -1), ffn_weight_2, ffn_bias_2)
    del inner
    x.add_(before)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)
