"""A Hugging Face `Trainer` as a program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap.fit import Fit

__all__ = ["make_of"]

# Batches that are looked at for the largest.
_LOOKED_AT = 16


def make_of(trainer: Any) -> Callable[[], Fit]:
    """A `make()` with the trainer's model, optimizer, loss and largest batch; the trainer keeps its own.

    Raises:
        Error: this is no trainer, or it has no data to train on.
    """
    model = getattr(trainer, "model", None)
    if model is None or not hasattr(trainer, "get_train_dataloader"):
        raise Error(
            f"{type(trainer).__name__} is no Hugging Face Trainer", "Give a `transformers.Trainer` with a model."
        )
    if getattr(trainer, "train_dataset", None) is None:
        raise Error("the trainer has no `train_dataset`, so there is no batch to plan for", "Give it one.")
    batch = _largest(trainer)
    settings = _Settings(trainer)
    weights = copy.deepcopy(model).cpu()

    def make() -> Fit:
        from gpuheap.fit import Fit

        made = copy.deepcopy(weights)
        made.train()
        if settings.checkpointing and hasattr(made, "gradient_checkpointing_enable"):
            made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if hasattr(made, "config"):
            made.config.use_cache = False
        loss = settings.loss()
        if settings.passes > 1:
            return Fit(made, settings.optimizer(made), batch=batch, step=_accumulating(loss, settings.passes))
        return Fit(made, settings.optimizer(made), loss, batch)

    return make


class _Settings:
    """What of the trainer's arguments decides about memory."""

    def __init__(self, trainer: Any) -> None:
        args = trainer.args
        self.passes = max(int(getattr(args, "gradient_accumulation_steps", 1)), 1)
        self.checkpointing = bool(getattr(args, "gradient_checkpointing", False))
        self.dtype = "bfloat16" if getattr(args, "bf16", False) else "float16" if getattr(args, "fp16", False) else None
        self.decay = float(getattr(args, "weight_decay", 0.0))
        own = trainer.optimizer
        if own is not None:
            self.kind, self.options = type(own), dict(own.defaults)
        else:
            self.kind, self.options = type(trainer).get_optimizer_cls_and_kwargs(args, trainer.model)
        self.names = set(trainer.get_decay_parameter_names(trainer.model))
        self.smoothing = getattr(trainer, "label_smoother", None)
        self.own_loss = getattr(trainer, "compute_loss_func", None)

    def optimizer(self, model: Any) -> Any:
        """One as the trainer makes it: two groups, with and without weight decay."""
        trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        decayed = [one for name, one in trained if name in self.names]
        rest = [one for name, one in trained if name not in self.names]
        groups = [{"params": decayed, "weight_decay": self.decay}, {"params": rest, "weight_decay": 0.0}]
        options = {name: value for name, value in self.options.items() if name not in ("params", "weight_decay")}
        return self.kind([group for group in groups if group["params"]], **options)

    def loss(self) -> Any:
        """The forward pass as the trainer does it: within autocast, with its own loss if it has one."""
        dtype, smoother, own = self.dtype, self.smoothing, self.own_loss
        if dtype is None and smoother is None and own is None:
            return None

        def whole(model: Any, batch: Any) -> Any:
            import torch

            enabled = dtype is not None
            kind = next(model.parameters()).device.type
            with torch.autocast(kind, dtype=getattr(torch, dtype or "bfloat16"), enabled=enabled):
                inputs = dict(batch)
                labels = (
                    inputs.pop("labels") if (smoother is not None or own is not None) and "labels" in inputs else None
                )
                output = model(**inputs)
                if own is not None:
                    return own(output, labels)
                if smoother is not None and labels is not None:
                    return smoother(output, labels)
                return output["loss"] if isinstance(output, dict) else output[0]

        return whole


def _accumulating(loss: Any, passes: int) -> Callable[[Any, Any, Any], None]:
    """A step of several passes, as the trainer does it: all but the first have gradients beside their activations."""

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        from gpuheap._fit.program import loss_of

        for _ in range(passes):
            (loss_of(model, loss, batch) / passes).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _largest(trainer: Any) -> Any:
    """The batch with most elements of the first few."""
    import torch
    from torch.utils import _pytree as pytree

    def size(batch: Any) -> int:
        return sum(leaf.numel() for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))

    best: Any = None
    for batch in _first(trainer.get_train_dataloader()):
        if best is None or size(batch) > size(best):
            best = batch
    if best is None:
        raise Error("the trainer's `train_dataset` gave no batch", "Give it samples.")
    return pytree.tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, dict(best))


def _first(loader: Any) -> Iterator[Any]:
    for number, batch in enumerate(loader):
        if number >= _LOOKED_AT:
            return
        yield batch
