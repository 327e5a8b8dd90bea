"""The lever `optimizer`: the form in which the optimizer works, by what it costs in memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from gpuheap._fit.apply import in_backward, low_bit
from gpuheap._fit.apply.choice import one_of
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check"]

WHAT = "the lever `optimizer`"
FORMS = ("foreach", "for_loop", "fused", "in_backward", "8bit", "4bit")
_FLAGS = {
    "foreach": {"foreach": True, "fused": False},
    "for_loop": {"foreach": False, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The optimizer has the form."""
    form = one_of(lever, "form", FORMS)
    optimizer = target.one_optimizer(WHAT)
    if form == "in_backward":
        in_backward.check(target, optimizer)
        return
    if form in low_bit.BITS:
        low_bit.check(target, optimizer, form)
        return
    name = type(optimizer).__name__
    for flag, value in _FLAGS[form].items():
        if value and any(flag not in group for group in optimizer.param_groups):
            raise LeverError(f"{name} has no form `{form}`", "Use an optimizer of `torch.optim` such as AdamW.")
    if form == "for_loop" and not any("foreach" in group for group in optimizer.param_groups):
        raise LeverError(f"{name} cannot be told to work parameter by parameter", "Leave the lever out.")
    if form == "fused":
        _check_fused(optimizer, name)


def _check_fused(optimizer: Any, name: str) -> None:
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise LeverError(f"a differentiable {name} cannot be fused", "Leave the lever out.")
        for parameter in group["params"]:
            if parameter.device.type not in ("cuda", "cpu", "mps", "xpu") or not parameter.is_floating_point():
                raise LeverError(
                    f"a fused {name} takes floating parameters, and not {parameter.dtype} on {parameter.device}",
                    "Move the model before the plan is applied.",
                )


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Tell the optimizer, or put another in its place."""
    form = one_of(lever, "form", FORMS)
    optimizer = target.one_optimizer(WHAT)
    if form == "in_backward":
        in_backward.apply(target, optimizer)
        return
    if form in low_bit.BITS:
        low_bit.apply(target, optimizer, form)
        return
    for group in (*optimizer.param_groups, optimizer.defaults):
        for flag, value in _FLAGS[form].items():
            if flag in group:
                before = group[flag]
                target.undo_by(partial(group.update, {flag: before}))
                group[flag] = value
    if form == "fused":
        # Set by the optimizer's own `fused=True`; a gradient scaler hands its scale to such optimizers.
        target.set(optimizer, "_step_supports_amp_scaling", True)
        target.set(optimizer, "_need_device_dtype_check_for_fused", True)
        _counters_to_device(target, optimizer)
    elif getattr(optimizer, "_step_supports_amp_scaling", False):
        target.set(optimizer, "_step_supports_amp_scaling", False)


def _counters_to_device(target: Target, optimizer: Any) -> None:
    """The fused kernels read the count of steps on the device."""
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        if isinstance(count, torch.Tensor) and count.device != parameter.device:
            target.undo_by(partial(state.update, step=count))
            state["step"] = count.to(parameter.device)
