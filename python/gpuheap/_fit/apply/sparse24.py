"""The lever `sparse24`: of four weights in a row two are kept, in a form that tensor cores read; for inference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check", "largest_two_of_four"]

WHAT = "the lever `sparse24`"
# What the kernels take: rows and columns in multiples of these.
_ROWS, _COLUMNS = 32, 64


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The device and the type can do it, and nothing is trained."""
    if target.optimizers():
        raise LeverError(f"{WHAT} is for inference: sparse weights cannot be trained", "Give no optimizer.")
    device = target.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        raise LeverError(
            f"{WHAT} needs a GPU with sparse tensor cores (compute capability 8.0), and the model is on {device}",
            "Leave it out.",
        )
    layers = _layers(target.model)
    if not layers:
        raise LeverError(
            f"{WHAT}: {type(target.model).__name__} has no linear layers of 16 bits whose sizes are multiples of "
            f"{_ROWS} and {_COLUMNS}",
            "Convert the model first: `model.half()` or `model.bfloat16()`.",
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Prune and compress the weights of linear layers."""
    from torch.sparse import to_sparse_semi_structured

    before, after = 0, 0
    for module in _layers(target.model):
        dense = module.weight
        target.undo_by(partial(setattr, module, "weight", dense))
        before += dense.nbytes
        sparse = to_sparse_semi_structured(largest_two_of_four(dense.detach()))
        module.weight = torch.nn.Parameter(sparse, requires_grad=False)
        # Half of the values, and two bits for each of them.
        after += dense.nbytes * 9 // 16
    target.notes.append(
        f"2:4 sparse: {before} bytes of weights became {after}; half of the weights are gone, so evaluate the model."
    )


def largest_two_of_four(weight: Any) -> Any:
    """The weight with the two smaller of each four in a row set to zero."""
    fours = weight.reshape(-1, 4)
    smallest = fours.abs().argsort(dim=1, stable=True)[:, :2]
    return fours.scatter(1, smallest, 0).reshape(weight.shape)


def _layers(model: Any) -> list[Any]:
    return [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
        and module.weight.dtype in (torch.float16, torch.bfloat16)
        and module.weight.shape[0] % _ROWS == 0
        and module.weight.shape[1] % _COLUMNS == 0
    ]
