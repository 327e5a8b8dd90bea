"""Optimizers whose state has 8 or 4 bits: those of torchao, else of bitsandbytes."""

from __future__ import annotations

import importlib.util
from typing import Any

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["BITS", "apply", "check"]

BITS = ("8bit", "4bit")
_KNOWN = ("Adam", "AdamW")
_COPIED = ("lr", "betas", "eps", "weight_decay", "amsgrad")


def check(target: Target, optimizer: Any, form: str) -> None:
    """A library has it, for this optimizer, which has not begun."""
    name = type(optimizer).__name__
    if type(optimizer).__module__.partition(".")[0] != "torch" or name not in _KNOWN:
        raise LeverError(
            f"there is no {form} form of {type(optimizer).__module__}.{name} here",
            "Use `torch.optim.AdamW` or `Adam`, or leave the lever out.",
        )
    if optimizer.state:
        raise LeverError(
            f"{name} has taken steps already, and its state cannot become {form}",
            "Apply the plan before the first step and before a state is loaded.",
        )
    for group in optimizer.param_groups:
        for flag in ("maximize", "capturable", "differentiable"):
            if group.get(flag):
                raise LeverError(f"the {form} form of {name} has no `{flag}`", "Leave the lever out.")
    if _library(form) is None:
        wanted = "torchao" if form == "4bit" else "torchao or bitsandbytes"
        raise LeverError(f"an optimizer of {form} needs {wanted}, and neither is installed", "`pip install torchao`")


def apply(target: Target, optimizer: Any, form: str) -> None:
    """Put the other optimizer in place, with the settings of each group."""
    kind = _class(_library(form), type(optimizer).__name__, form)
    groups = []
    for group in optimizer.param_groups:
        settings = {name: group[name] for name in _COPIED if name in group}
        groups.append({"params": group["params"], **settings})
    before = target.optimizer
    target.undo_by(lambda: setattr(target, "optimizer", before))
    target.optimizer = kind(groups, **{name: value for name, value in groups[0].items() if name != "params"})
    for new, old in zip(target.optimizer.param_groups, optimizer.param_groups, strict=True):
        for name, value in old.items():
            # What schedulers keep there.
            if name not in new and name in ("initial_lr", "name"):
                new[name] = value
    target.notes.append(
        f"The optimizer is {kind.__module__}.{kind.__name__} now: use `applied.optimizer`, and make learning rate "
        "schedulers after the plan is applied."
    )


def _library(form: str) -> str | None:
    if importlib.util.find_spec("torchao") is not None:
        return "torchao"
    if form == "8bit" and importlib.util.find_spec("bitsandbytes") is not None:
        return "bitsandbytes"
    return None


def _class(library: str | None, name: str, form: str) -> Any:
    if library == "bitsandbytes":
        from bitsandbytes import optim  # type: ignore[import-not-found, unused-ignore]

        return getattr(optim, f"{name}8bit")
    import torchao.optim  # type: ignore[import-not-found, unused-ignore]

    return getattr(torchao.optim, f"{name}{form}")
