"""A program with its levers applied: what to call in the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from gpuheap._fit.apply import batch as batches
from gpuheap._fit.apply.forward import is_whole_step
from gpuheap._fit.apply.target import Target
from gpuheap._fit.program import loss_of

__all__ = ["Applied", "MicroBatch"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a batch, and what its mean loss counts for in the mean of the whole batch."""

    batch: Any
    weight: Any
    """A factor for the loss of this part: a number, or a tensor with one element."""


class Applied:
    """The model and the optimizer with the plan applied.

    The whole step in one call::

        applied = plan.apply(model, optimizer)
        for batch in loader:
            loss = applied.step(batch)
            scheduler.step()

    Or in your own loop, with the same result::

        for part in applied.parts(batch):
            with applied.forward():
                loss = applied.model(**part.batch).loss * part.weight
            applied.backward(loss)
        applied.optimizer_step()
    """

    def __init__(self, target: Target) -> None:
        """Take over what the levers made of the program."""
        self._target = target
        self.model = target.model
        """What to call instead of the model; the same object wherever a lever could work inside of it."""
        self.optimizer = target.optimizer
        """What to step, and to give to a learning rate scheduler; another object for 8-bit and 4-bit optimizers."""
        self.loss = target.loss
        self.scaler = target.scaler
        """The `GradScaler` of autocast with float16, else None."""
        self.accumulation = target.accumulation
        """Passes a step."""
        self.levers = tuple(target.levers)
        self.notes = tuple(target.notes)
        """Sentences about what was done and what it does not do."""
        self.environment = dict(target.environment)
        """Variables that have to be set before the program starts."""
        self.command = tuple(target.command)
        """What the program has to be started under, such as `gpuheap run`."""

    def __iter__(self) -> Iterator[Any]:
        """Allow `model, optimizer = plan.apply(model, optimizer)`."""
        yield self.model
        yield self.optimizer

    def forward(self) -> AbstractContextManager[None]:
        """What a forward pass and its loss run in: autocast, inference mode. Leave it before the backward pass."""
        return self._forward()

    @contextmanager
    def _forward(self) -> Iterator[None]:
        with ExitStack() as stack:
            for context in self._target.contexts:
                stack.enter_context(context())
            yield

    def parts(self, batch: Any) -> list[MicroBatch]:
        """The parts of a batch, each with the weight with which the losses add up to the loss of the whole batch.

        Means over samples and over class labels (without those that are ignored) are exact. Under data parallelism and
        FSDP2 the batch is this rank's; the weights then are those of the mean over all ranks.
        """
        target = self._target
        parts = batches.split(batch, target.accumulation)
        if len(parts) == 1 and target.ranks == 1:
            return [MicroBatch(batch, 1.0)]
        weights = [batches.weigh(target, part) for part in parts]
        if any(weight is None for weight in weights):
            # A sum over the batch: parts add up. Between ranks gradients are averaged, so multiply.
            return [MicroBatch(part, float(target.ranks)) for part in parts]
        total = sum(weights[1:], weights[0])
        if target.ranks > 1:
            total = _over_ranks(total, self._device(), target.group) / target.ranks
        return [MicroBatch(part, weight / total) for part, weight in zip(parts, weights, strict=True)]

    def backward(self, loss: Any) -> None:
        """The backward pass, with the loss scaled where float16 needs it."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def optimizer_step(self) -> None:
        """Step the optimizer and drop the gradients."""
        self._step_optimizers()
        self.zero_grad()

    def _step_optimizers(self) -> None:
        for optimizer in self._target.optimizers():
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def zero_grad(self) -> None:
        """Drop the gradients, those that no optimizer has as well."""
        for optimizer in self._target.optimizers():
            optimizer.zero_grad(set_to_none=True)

    def step(self, batch: Any) -> Any:
        """One training step on a batch: gradients dropped, all passes, the optimizer. Returns the loss, detached.

        Of a model in evaluation (the lever `inference_mode`, or no optimizer) only the loss is computed.
        """
        target = self._target
        if target.evaluation or not target.optimizers():
            return self.evaluate(batch)
        if is_whole_step(self.loss):
            return self.loss(self.model, self.optimizer, batch)
        self.zero_grad()
        loss = target.pipeline.step(batch) if target.pipeline is not None else self._passes(batch)
        self._step_optimizers()
        return loss

    def _passes(self, batch: Any) -> Any:
        total: Any = None
        parts = self.parts(batch)
        ranks = self._target.ranks
        for index, part in enumerate(parts):
            with self._synchronised(index == len(parts) - 1), self._forward():
                loss = loss_of(self.model, self.loss, part.batch)
                if len(parts) > 1 or ranks > 1:
                    loss = loss * _as_factor(part.weight, loss)
            with self._synchronised(index == len(parts) - 1):
                self.backward(loss)
            value = loss.detach()
            total = value if total is None else total + value
            # The graph of this part must be gone before the next is built.
            del loss
        return total

    def evaluate(self, batch: Any) -> Any:
        """The loss of a batch without gradients; the parts of it one after the other."""
        total: Any = None
        for part in self.parts(batch):
            with torch.inference_mode(), self._forward():
                loss = loss_of(self.model, self.loss, part.batch)
                loss = loss * _as_factor(part.weight, loss)
            total = loss if total is None else total + loss
        return total

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Between parts ranks need not agree: gradients are exchanged with the last."""
        no_sync = getattr(self.model, "no_sync", None)
        if last or self._target.ranks == 1 or no_sync is None:
            return ExitStack()
        context: AbstractContextManager[Any] = no_sync()
        return context

    def _device(self) -> Any:
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def __repr__(self) -> str:
        """Name the levers."""
        names = ", ".join(str(lever["lever"]) for lever in self.levers) or "none"
        return f"Applied({type(self.model).__name__}; levers: {names})"


def _as_factor(weight: Any, loss: Any) -> Any:
    return weight.to(loss.device, loss.dtype) if isinstance(weight, torch.Tensor) else weight


def _over_ranks(total: Any, device: Any, group: Any) -> Any:
    import torch.distributed as dist

    value = torch.as_tensor(total, dtype=torch.float64, device=device).clone()
    dist.all_reduce(value, group=group)
    return value
