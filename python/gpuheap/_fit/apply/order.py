"""Which file applies which lever, in which order, and which levers exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from gpuheap._fit.apply.forward import is_whole_step
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["NAMES", "ordered"]

# In the order in which they are applied: what settings need comes first, then what changes weights, then what wraps
# modules, then what replaces parameters (sharding), then the optimizer, which has to see the final parameters; last
# what only adds contexts to a step.
_FILES = {
    "allocator": "allocator",
    "prune": "prune",
    "sparse24": "sparse24",
    "quantize": "quantize",
    "parameters": "parameters",
    "loss": "loss",
    "checkpoint": "checkpoint",
    "selective_checkpoint": "selective",
    "offload_activations": "offload_activations",
    "compile": "compiled",
    "shard": "shard",
    "optimizer": "optimizer",
    "optimizer_state": "optimizer_state",
    "offload_optimizer": "offload_optimizer",
    "autocast": "autocast",
    "accumulate": "accumulate",
    "inference_mode": "inference",
    "spill": "spill",
}
NAMES = tuple(_FILES)
_OF_TRAINING = (
    "accumulate", "checkpoint", "selective_checkpoint", "offload_activations", "optimizer", "optimizer_state",
    "offload_optimizer",
)  # fmt: skip
# Pairs that do not go together, with the reason.
_CONFLICTS = (
    ("checkpoint", "selective_checkpoint", "overlap"),
    ("checkpoint", "offload_activations", "overlap"),
    ("selective_checkpoint", "offload_activations", "overlap"),
    ("offload_activations", "compile", "compiled code keeps activations where hooks of single tensors cannot reach"),
    ("autocast", "parameters", "parameters of bfloat16 compute in bfloat16 by themselves"),
    ("optimizer_state", "offload_optimizer", "both say how the optimizer's state is kept between steps"),
    ("sparse24", "quantize", "both replace the weights of the same layers"),
    ("sparse24", "shard", "weights that are 2:4 sparse cannot be sharded"),
    *(
        ("inference_mode", name, "nothing is trained in inference mode")
        for name in _OF_TRAINING
        if name != "accumulate"
    ),
)


def ordered(target: Target) -> list[tuple[ModuleType, Mapping[str, Any]]]:
    """The levers in the order in which they are applied, each with the module that does it."""
    found: dict[str, Mapping[str, Any]] = {}
    for lever in target.levers:
        name = lever.get("lever") if isinstance(lever, Mapping) else None
        if not isinstance(name, str):
            raise LeverError(
                f"`{lever!r}` is no lever", 'A lever is an object with a name, as {"lever": "accumulate", "factor": 4}.'
            )
        if name not in _FILES:
            raise LeverError(f"there is no lever `{name}`", f"There are: {', '.join(NAMES)}.")
        if name in found:
            raise LeverError(f"the lever `{name}` is there twice", "Put both into one.")
        found[name] = lever
    _exclude(found)
    if is_whole_step(target.loss):
        for name in ("accumulate", "autocast", "inference_mode"):
            if name in found:
                raise LeverError(
                    f"the lever `{name}` needs the loss, but this program does its whole step by itself",
                    "Return the loss from `make()` instead of the step, or leave the lever out.",
                )
    return [(import_module(f"{__package__}.{_FILES[name]}"), found[name]) for name in _FILES if name in found]


def _exclude(found: Mapping[str, Mapping[str, Any]]) -> None:
    for one, other, why in _CONFLICTS:
        if one not in found or other not in found:
            continue
        if why != "overlap":
            raise LeverError(f"the levers `{one}` and `{other}` do not go together: {why}", "Leave one of them out.")
        for name in found[one].get("modules") or ():
            for second in found[other].get("modules") or ():
                if name == second or f"{name}.".startswith(f"{second}.") or f"{second}.".startswith(f"{name}."):
                    raise LeverError(
                        f"the levers `{one}` and `{other}` both name `{name if len(name) > len(second) else second}`",
                        "Give each module to one of them.",
                    )
