"""The lever `autocast`: matrix products and convolutions in 16 bits; with float16 the loss is scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import one_of
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The device can do it, and the parameters are float32."""
    dtype = one_of(lever, "dtype", ("bfloat16", "float16"))
    device = target.device
    if device.type == "cuda" and dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise LeverError(
            f"{torch.cuda.get_device_name(device)} has no bfloat16", 'Use {"lever": "autocast", "dtype": "float16"}.'
        )
    if dtype == "float16":
        half = [
            name for name, one in target.model.named_parameters() if one.dtype == torch.float16 and one.requires_grad
        ]
        if half:
            raise LeverError(
                f"`{half[0]}` is float16, and a gradient scaler needs parameters of float32",
                "Build the model in float32: autocast computes in float16 by itself.",
            )
        if (target.lever("optimizer") or {}).get("form") == "in_backward":
            raise LeverError(
                "autocast with float16 does not go with the optimizer in backward: scaled gradients have to be looked "
                "through before any is used",
                'Use "dtype": "bfloat16", or another form of the optimizer.',
            )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Add the context, and the scaler of float16."""
    dtype = getattr(torch, one_of(lever, "dtype", ("bfloat16", "float16")))
    kind = target.device.type
    target.contexts.append(lambda: torch.autocast(kind, dtype=dtype))
    if dtype is torch.float16 and target.optimizers():
        target.scaler = torch.amp.GradScaler(kind)
