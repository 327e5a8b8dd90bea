"""What one model of the zoo is: how it, its batch, its loss and its optimizer are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Loss = Callable[..., torch.Tensor]


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(model), 0.01, momentum=0.9, weight_decay=1e-4, **options)


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained(model), 1e-5, **options)


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained(model), 1e-4, **options)


def adagrad(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(trained(model), 1e-3, **options)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target)


USUAL = (
    "autocast_bf16",
    "autocast_fp16",
    "params_bf16",
    "checkpoint",
    "foreach_off",
    "fused",
    "accumulate4",
    "evaluation",
    "expandable",
)
"""The settings tried on a model's middle batch unless its entry says otherwise; `zoo_steps.SETTINGS` defines them."""


@dataclass(frozen=True)
class Spec:
    """How a model of the zoo is made.

    `loss` is None where the model's output carries it, a function of (output, target), one of (model, batch), or, for a
    program with a step of its own, a function of (model, optimizers, batch).
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Loss | Callable[..., None] | None
    optimizer: Callable[..., Any]
    batches: tuple[int, ...]
    """Three batches or more; the middle one is run at the other settings too."""
    blocks: Callable[[nn.Module], list[str]] | None = None
    """The names of the modules that an activation checkpoint goes around; None where people do not checkpoint it."""
    settings: tuple[str, ...] = USUAL
    calibration: bool = False
    """Constants and rules may be learnt from it; every other model only validates them."""
    needs: tuple[str, ...] = ()
    """Packages beyond torch and torchvision."""
