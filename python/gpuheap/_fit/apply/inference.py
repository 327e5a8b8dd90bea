"""The lever `inference_mode`: evaluation keeps no activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.target import Target

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """Nothing to check beyond the conflicts with levers of training."""


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Run passes in inference mode; gradients of earlier training go, the model's mode is the caller's."""
    target.contexts.insert(0, torch.inference_mode)
    target.evaluation = True
    if target.model.training:
        target.notes.append("The model is in training mode: call `model.eval()` for dropout and batch norms to stop.")
