"""The lever `quantize`: weights of linear layers in 8 or 4 bits, for inference or where they are frozen."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gpuheap._fit.apply.choice import one_of
from gpuheap._fit.apply.frozen import FrozenLinear
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]

WHAT = "the lever `quantize`"
_GROUP = 128


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """There are layers that may be quantized."""
    one_of(lever, "dtype", ("int8", "int4"))
    frozen_only = bool(lever.get("frozen_only", bool(target.optimizers())))
    if target.optimizers() and not frozen_only:
        raise LeverError(
            f"{WHAT} would quantize weights that are trained",
            'Say "frozen_only": true, or give no optimizer to evaluate.',
        )
    layers = layers_of(target.model, frozen_only)
    if not layers:
        raise LeverError(
            f"{WHAT}: no linear layer of {type(target.model).__name__} " + ("is frozen" if frozen_only else "is there"),
            "Freeze weights with `requires_grad_(False)`, as adapters such as LoRA do." if frozen_only else None,
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Quantize with torchao for inference in 8 bits; else with layers of our own, which let gradients through."""
    dtype = one_of(lever, "dtype", ("int8", "int4"))
    layers = layers_of(target.model, bool(lever.get("frozen_only", bool(target.optimizers()))))
    if target.optimizers() or dtype == "int4" or importlib.util.find_spec("torchao") is None:
        for name, module in layers:
            _replace(target, name, module, FrozenLinear.of(module, 8 if dtype == "int8" else 4, _GROUP))
        return
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # type: ignore[import-not-found, unused-ignore]

    chosen = {id(module) for _, module in layers}
    for _, module in layers:
        weight = module.weight
        target.undo_by(partial(setattr, module, "weight", weight))
    quantize_(target.model, Int8WeightOnlyConfig(version=2), filter_fn=lambda module, name: id(module) in chosen)


def layers_of(model: Any, frozen_only: bool) -> list[tuple[str, Any]]:
    """Linear layers, without those whose weights something else uses as well, such as tied embeddings."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear
        and name
        and uses[id(module.weight)] == 1
        and not (frozen_only and module.weight.requires_grad)
    ]


def _replace(target: Target, name: str, module: Any, other: Any) -> None:
    parent = target.model.get_submodule(name.rpartition(".")[0])
    last = name.rpartition(".")[2]
    target.undo_by(lambda: parent._modules.update({last: module}))
    parent._modules[last] = other
