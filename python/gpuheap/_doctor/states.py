"""What optimizers keep for parameters that they no longer train."""

from __future__ import annotations

from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.subject import Subject, parameters_of
from gpuheap._doctor.within import tensors_within
from gpuheap._held import _optimizers
from gpuheap._names import _table, live_modules
from gpuheap._objects import class_name, instance_dict, is_instance
from gpuheap._tensors import storages_of
from gpuheap.holders import holders

__all__ = ["find", "keys_of_foreign_parameters"]

_SECONDS = 20.0
_NAMED = 4


def _state_bytes(torch: Any, optimizer: Any, parameter: Any) -> int:
    state = (instance_dict(optimizer) or {}).get("state")
    own = state.get(parameter) if state is not None else None
    return sum(
        {one.key: one.bytes for tensor in tensors_within(torch, own) for one in storages_of(torch, tensor)}.values()
    )


def _in_modules(torch: Any) -> set[int]:
    return {
        id(tensor)
        for module in live_modules(torch)
        for table in ("_parameters", "_buffers")
        for tensor in _table(module, table).values()
    }


def keys_of_foreign_parameters(subject: Subject) -> set[int]:
    """Storages of parameters that optimizers have and the models do not."""
    torch = subject.torch
    own = {id(one) for one in subject.parameters()}
    return {
        storage.key
        for optimizer in _optimizers(torch)
        for parameter in parameters_of(optimizer)
        if id(parameter) not in own and is_instance(parameter, torch.Tensor)
        for storage in storages_of(torch, parameter)
    }


def find(subject: Subject, stepped: set[int], used: set[int]) -> list[Finding]:
    """Judges after the steps.

    Args:
        subject: the models.
        stepped: identities of optimizers that made a step.
        used: keys of foreign parameters that an operation used.
    """
    torch = subject.torch
    own = {id(one) for one in subject.parameters()}
    inside = _in_modules(torch)
    found = []
    for optimizer in _optimizers(torch):
        frozen, lost = [], []
        for parameter in parameters_of(optimizer):
            if not is_instance(parameter, torch.Tensor):
                continue
            size = _state_bytes(torch, optimizer, parameter)
            if id(parameter) in own:
                if size and not parameter.requires_grad:
                    frozen.append((subject.names.get(id(parameter), "?"), size))
                continue
            keys = {one.key for one in storages_of(torch, parameter)}
            if keys & used:
                continue
            belongs = any(id(one) in own for one in parameters_of(optimizer))
            if id(parameter) not in inside or (id(optimizer) not in stepped and not belongs):
                lost.append((parameter, size))
        name = class_name(type(optimizer))
        if frozen:
            found.append(
                Finding(
                    kind="state_of_frozen_parameters",
                    title=f"{name} keeps state for {len(frozen)} frozen parameters",
                    bytes=sum(size for _, size in frozen),
                    evidence=(
                        ", ".join(f"`{label}`" for label, _ in frozen[:_NAMED]),
                        "they have `requires_grad=False`",
                    ),
                    remedy="Make the optimizer anew with the parameters that are trained, after freezing; or drop "
                    "their "
                    "state: `del optimizer.state[p]`.",
                )
            )
        if lost:
            found.append(_lost(torch, optimizer, name, lost, id(optimizer) in stepped))
        del frozen, lost
    return found


def _lost(torch: Any, optimizer: Any, name: str, lost: list[tuple[Any, int]], stepped: bool) -> Finding:
    weights = sum({one.key: one.bytes for parameter, _ in lost for one in storages_of(torch, parameter)}.values())
    states = sum(size for _, size in lost)
    count = len(lost)
    every = count == len(parameters_of(optimizer))
    lost.clear()
    held = (
        []
        if stepped and not every
        else [one.path for one in holders(optimizer, limit=2, budget=_SECONDS) if one.root != "unseen"][:2]
    )
    what = f"an {name} of an earlier model" if every else f"{name}"
    return Finding(
        kind="state_of_lost_parameters",
        title=f"{what} keeps {count} parameters that are not in the model any more",
        bytes=weights + states,
        holders=tuple(held),
        evidence=(
            f"{bytes_text(weights)} of weights and {bytes_text(states)} of state",
            "no operation of the steps used them" + ("" if stepped else ", and this optimizer made no step"),
        ),
        remedy="Drop the old optimizer (`del`, or bind the new one to the same name)."
        if every
        else "Make the optimizer after the last change of the model: a layer that is replaced leaves its parameters in "
        "the optimizer.",
        confidence="high" if every else "medium",
    )
