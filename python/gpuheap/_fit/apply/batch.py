"""Batches in parts: the same effective batch from several passes, and what each part weighs in a mean loss."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["batch_size", "split", "weigh", "weight_of"]


def batch_size(batch: Any) -> int:
    """The number of samples: the first dimension that most tensors of the batch share."""
    leaves = pytree.tree_leaves(batch)
    sizes: list[int] = [int(leaf.shape[0]) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not sizes:
        raise LeverError(
            "the batch has no tensor with a first dimension, so it cannot be split",
            "Give the batch as tensors, or as a dict, tuple or list of tensors.",
        )
    counts = Counter(sizes)
    # Of sizes that are equally common the first tensor's is the batch.
    return max(sizes, key=lambda size: (counts[size], -sizes.index(size)))


def split(batch: Any, parts: int) -> list[Any]:
    """The batch in that many parts along its first dimension, sizes apart by one at most; the rest goes to each."""
    if parts == 1:
        return [batch]
    leaves, form = pytree.tree_flatten(batch)
    size = batch_size(batch)
    if parts > size:
        raise LeverError(f"a batch of {size} cannot be split into {parts} parts", "Use a larger batch or fewer parts.")
    split_leaves = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size:
            split_leaves.append(list(torch.tensor_split(leaf, parts)))
        else:
            split_leaves.append([leaf] * parts)
    return [pytree.tree_unflatten([leaf[part] for leaf in split_leaves], form) for part in range(parts)]


def weigh(target: Target, batch: Any) -> Any:
    """What the mean loss of this part weighs: as the program says, else as labels and samples do."""
    return weight_of(target.model, target.loss, batch) if target.weigh is None else target.weigh(batch)


def weight_of(model: Any, loss: Any, batch: Any) -> Any:
    """What the mean loss of this part weighs: the samples or the labels that the mean is taken over.

    A number, or a tensor on the labels' device (so that no step waits for the GPU).
    """
    reduction = getattr(loss, "reduction", "mean")
    if reduction == "sum":
        return None
    labels, ignored, shifted = _labels(model, loss, batch)
    if labels is None:
        return float(batch_size(batch))
    if shifted:
        labels = labels[..., 1:]
    counted = labels != ignored
    class_weight: Any = getattr(loss, "weight", None)
    if isinstance(class_weight, torch.Tensor):
        chosen = class_weight.to(labels.device)[labels.clamp(0, len(class_weight) - 1)]
        return (chosen * counted).sum().double()
    return counted.sum().double()


def _labels(model: Any, loss: Any, batch: Any) -> tuple[Any, int, bool]:
    """Class labels that a mean is taken over, the one that is not counted, and whether they are shifted by one."""
    if isinstance(batch, dict):
        labels: Any = batch.get("labels")
        if not _are_classes(labels) or labels.dim() < 2:
            return None, -100, False
        return labels, -100, _loss_type(model) == "ForCausalLM"
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and hasattr(loss, "ignore_index"):
        target = batch[1]
        if _are_classes(target):
            return target, int(loss.ignore_index), False
    return None, -100, False


def _are_classes(labels: Any) -> bool:
    return isinstance(labels, torch.Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool


def _loss_type(model: Any) -> str | None:
    """How Hugging Face's models say which loss they have; wrapped models have it below."""
    for _ in range(8):
        kind = getattr(model, "loss_type", None)
        if isinstance(kind, str):
            return kind
        name = type(model).__name__
        for known in ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration"):
            if name.endswith(known):
                return "ForCausalLM" if known in ("ForCausalLM", "LMHeadModel") else known
        inner = None
        for attribute in ("module", "base_model", "model", "_orig_mod"):
            inner = getattr(model, attribute, None)
            if isinstance(inner, torch.nn.Module):
                break
        if not isinstance(inner, torch.nn.Module):
            return None
        model = inner
    return None
