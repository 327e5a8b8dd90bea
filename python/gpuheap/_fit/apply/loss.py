"""The lever `loss`: the cross entropy of a language model's head by chunks, without all of its logits at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import one_of, whole
from gpuheap._fit.apply.lazy_logits import LazyLogits
from gpuheap._fit.apply.target import LeverError, Target, module_named, set_forward

__all__ = ["apply", "check", "head_of"]

WHAT = "the lever `loss`"


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """There is a linear layer at the model's end."""
    one_of(lever, "form", ("chunked",))
    whole(lever, "chunks", 1, 8)
    head_of(target.model, lever)
    if target.lever("compile") is not None:
        raise LeverError(
            f"{WHAT} does not go with `compile`: compiled code cannot hold logits back", "Leave one of them out."
        )
    shard = target.lever("shard")
    if shard is not None and shard.get("form") in ("pipeline", "tensor"):
        raise LeverError(f"{WHAT} does not go with {shard['form']} parallelism", "Leave one of them out.")


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Have the head hand on its input; the loss is taken from that."""
    _, head = head_of(target.model, lever)
    set_forward(target, head, functools.partial(_hand_on, whole(lever, "chunks", 1, 8)))


def head_of(model: Any, lever: Mapping[str, Any]) -> tuple[str, Any]:
    """The layer that makes logits: the one that is named, that the model says, or that is called as heads are."""
    name = lever.get("module")
    if isinstance(name, str):
        head = module_named(model, name, WHAT)
    else:
        head = _said(model)
        if head is None:
            called = [(known, one) for known, one in model.named_modules() if known.rsplit(".", 1)[-1] == "lm_head"]
            head = called[-1][1] if called else None
        name = next((known for known, one in model.named_modules() if one is head), "")
    if not isinstance(head, torch.nn.Linear):
        found = f"`{name}` is {type(head).__name__}" if head is not None else "none was found"
        raise LeverError(
            f"{WHAT} needs a `torch.nn.Linear` that makes the logits, but {found}",
            'Name it, as {"lever": "loss", "form": "chunked", "module": "head"}, or use '
            "`gpuheap._fit.apply.chunked.linear_cross_entropy(hidden, weight, target)` in your loss.",
        )
    return str(name), head


def _said(model: Any) -> Any:
    ask = getattr(model, "get_output_embeddings", None)
    if ask is None:
        return None
    try:
        return ask()
    except (AttributeError, NotImplementedError):
        return None


def _hand_on(
    chunks: int, head: Any, forward: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    (hidden,) = [*arguments, *named.values()]
    if not torch.is_grad_enabled() or hidden.dim() < 2:
        return forward(hidden)
    weight, bias = head.weight, head.bias
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return LazyLogits(hidden, weight, bias, chunks)
