"""Tensor parallelism: pairs of linear layers of which each rank has a part, and one exchange after the second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["apply", "check", "pairs_of"]

WHAT = "tensor parallelism"
# Within a block: layers that share their input and are cut by their outputs, and the one behind them that is cut by its
# inputs. What lies between works on each part for itself: activations, products of gates, heads of attention.
_PAIRS = (
    (("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    (("self.query", "self.key", "self.value"), ("output.dense",)),
    (("attention.query", "attention.key", "attention.value"), ("attention.output.dense", "output.dense")),
    (("q_lin", "k_lin", "v_lin"), ("out_lin",)),
    (("q", "k", "v"), ("o",)),
    (("wq", "wk", "wv"), ("wo",)),
    (("gate_proj", "up_proj"), ("down_proj",)),
    (("w1", "w3"), ("w2",)),
    (("intermediate.dense",), ("output.dense",)),
    (("wi_0", "wi_1"), ("wo",)),
    (("wi",), ("wo",)),
    (("fc1",), ("fc2",)),
    (("linear1",), ("linear2",)),
    (("lin1",), ("lin2",)),
    (("dense_h_to_4h",), ("dense_4h_to_h",)),
    (("up_proj",), ("down_proj",)),
    (("0",), ("3",)),
)


def pairs_of(model: Any) -> list[tuple[str, list[str], str]]:
    """Pairs that are known by the names of their layers: the block, its first layers, its second."""
    modules = dict(model.named_modules())
    found: list[tuple[str, list[str], str]] = []
    taken: set[str] = set()
    for block in modules:
        inside = f"{block}." if block else ""
        for firsts, seconds in _PAIRS:
            if firsts == ("0",) and not _is_sequence(modules[block]):
                continue
            first = [f"{inside}{name}" for name in firsts]
            second = next((f"{inside}{name}" for name in seconds if f"{inside}{name}" in modules), None)
            names = [*first, *([second] if second is not None else [])]
            if second is None or any(name in taken for name in names):
                continue
            if not all(type(modules.get(name)) is torch.nn.Linear for name in names):
                continue
            if modules[second].in_features != modules[first[0]].out_features:
                continue
            found.append((block, first, second))
            taken.update(names)
    return found


def _is_sequence(module: Any) -> bool:
    """`Linear, activation, Dropout, Linear`, as torchvision's transformers have it."""
    return isinstance(module, torch.nn.Sequential) and len(module) >= 4


def check(target: Target, lever: Mapping[str, Any], gpus: int) -> None:
    """There are pairs, and each can be cut evenly at whole heads."""
    pairs = pairs_of(target.model)
    if not pairs:
        raise LeverError(
            f"{WHAT}: {type(target.model).__name__} has no pairs of linear layers with names that are known",
            'Use {"form": "fsdp2"}, which needs none.',
        )
    modules = dict(target.model.named_modules())
    heads = _heads(target.model)
    for _, firsts, _ in pairs:
        for name in firsts:
            width = modules[name].out_features
            if width % gpus:
                raise LeverError(
                    f"{WHAT}: `{name}` has {width} outputs, which {gpus} GPUs cannot share evenly", "Use FSDP2."
                )
            is_attention = len(firsts) == 3
            for count in heads if is_attention else ():
                if count % gpus:
                    raise LeverError(
                        f"{WHAT}: {count} heads of attention cannot be shared evenly by {gpus} GPUs", "Use FSDP2."
                    )
    others = {"checkpoint", "selective_checkpoint", "autocast", "accumulate", "parameters", "optimizer", "allocator"}
    for chosen in target.levers:
        if chosen["lever"] not in {*others, "shard", "spill"}:
            raise LeverError(f"{WHAT} does not go with the lever `{chosen['lever']}` here", "Leave one of them out.")
    form = (target.lever("optimizer") or {}).get("form")
    if form in ("8bit", "4bit"):
        raise LeverError(f"{WHAT} does not go with the optimizer's form `{form}`", "Leave one of them out.")


def _heads(model: Any) -> list[int]:
    """Numbers of heads that the model says it has."""
    found: list[int] = []
    config = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads", "n_head", "n_heads"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            found.append(value)
    return found


def apply(target: Target, mesh: Any) -> None:
    """Cut the pairs; everything else stays whole on each rank."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    names = {parameter: name for name, parameter in target.model.named_parameters()}
    plan: dict[str, Any] = {}
    for _, firsts, second in pairs_of(target.model):
        plan.update((name, ColwiseParallel()) for name in firsts)
        plan[second] = RowwiseParallel()
    parallelize_module(target.model, mesh, plan)
    layers = {target.model.get_submodule(name) for name in plan}
    parts = {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}
    current = dict(target.model.named_parameters())
    size = mesh.size()
    for module in target.model.modules():
        # Older attention keeps the number of heads beside the layers.
        for name in ("num_heads", "n_heads", "num_key_value_heads", "all_head_size", "inner_dim"):
            value = vars(module).get(name)
            if isinstance(value, int) and value % size == 0 and any(child in layers for child in module.children()):
                target.set(module, name, value // size)
    for optimizer in target.optimizers():
        groups: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            parameters = [current[names[one]] if one in names else one for one in group["params"]]
            cut = [one for one in parameters if id(one) in parts]
            rest = [one for one in parameters if id(one) not in parts]
            # One call of a fused or foreach kernel takes either kind.
            groups.extend({**group, "params": kind} for kind in (cut, rest) if kind)
        optimizer.param_groups = groups
