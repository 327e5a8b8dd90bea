"""The lever `parameters`: parameters, and with them gradients and the optimizer's state, in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpuheap._fit.apply.choice import one_of
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]

# Statistics over batches lose their small updates in bfloat16, and the norms take float32 beside other types.
_KEPT = (torch.nn.modules.batchnorm._NormBase,)


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The parameters are floating, and no gradients of another type are about."""
    one_of(lever, "dtype", ("bfloat16",))
    if not any(parameter.dtype == torch.float32 for parameter in target.model.parameters()):
        kinds = sorted({str(parameter.dtype) for parameter in target.model.parameters()})
        raise LeverError(f"the model has no float32 parameters: they are {', '.join(kinds)}", "Leave the lever out.")
    held = [name for name, parameter in target.model.named_parameters() if parameter.grad is not None]
    if held:
        raise LeverError(
            f"`{held[0]}` has a gradient, which would keep its type", "Call `optimizer.zero_grad()` before the plan."
        )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Convert parameters in place, each still the same object; buffers follow unless accuracy needs float32."""
    for module in target.model.modules():
        if isinstance(module, _KEPT):
            continue
        for parameter in module._parameters.values():
            if parameter is not None and parameter.dtype == torch.float32:
                _set_data(target, parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype == torch.float32 and "inv_freq" not in name:
                module._buffers[name] = buffer.to(torch.bfloat16)
                target.undo_by(partial(module._buffers.update, {name: buffer}))
    for optimizer in target.optimizers():
        for parameter, state in optimizer.state.items():
            for name, value in list(state.items()):
                if _is_like(value, parameter) and value.dtype == torch.float32:
                    state[name] = value.to(torch.bfloat16)
                    target.undo_by(partial(state.update, {name: value}))
    handle = target.model.register_forward_pre_hook(_cast_inputs, with_kwargs=True)
    target.undo_by(handle.remove)
    target.notes.append(
        "Parameters are bfloat16: updates smaller than 1/256 of a weight are lost, so training can end elsewhere than "
        "with float32. Compare losses before a long run."
    )


def _set_data(target: Target, parameter: Any) -> None:
    before = parameter.data
    parameter.data = before.to(torch.bfloat16)
    target.undo_by(lambda: setattr(parameter, "data", before))


def _is_like(value: Any, parameter: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim() > 0


def _cast_inputs(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Floating inputs of the model as its weights."""
    return pytree.tree_map(_cast, arguments), pytree.tree_map(_cast, named)


def _cast(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.to(torch.bfloat16)
    return value
