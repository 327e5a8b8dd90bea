"""Pipeline parallelism: each rank has some of the model's blocks, and parts of the batch flow from rank to rank.

The model's own `forward` runs on every rank, so that masks, position tables and losses are made by the code that knows
how. On a rank the blocks of others do nothing: before the rank's first block what came from the rank before takes the
place of the hidden state, and after its last block the pass ends, or, on the last rank, goes on to the loss. That needs
no tracing of the model, and what is not on a rank takes no memory there.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from gpuheap._fit.apply import batch as batches
from gpuheap._fit.apply.chain import Chain, chain_of, cut_points
from gpuheap._fit.apply.choice import whole
from gpuheap._fit.apply.forward import is_whole_step
from gpuheap._fit.apply.stage import Ended, Passed, absent, received, stand_in
from gpuheap._fit.apply.target import LeverError, Target
from gpuheap._fit.program import loss_of

__all__ = ["apply", "check"]

WHAT = "pipeline parallelism"
_ALLOWED = (
    "shard", "checkpoint", "selective_checkpoint", "offload_activations", "autocast", "accumulate", "parameters",
    "optimizer", "allocator", "spill",
)  # fmt: skip


def check(target: Target, lever: Mapping[str, Any], gpus: int) -> None:
    """The model is a chain of blocks, and the other levers work on a part of it."""
    if is_whole_step(target.loss):
        raise LeverError(f"{WHAT} needs the loss, but this program does its whole step itself", "Return the loss.")
    if not target.optimizers():
        raise LeverError(f"{WHAT} is for training, and there is no optimizer", "Give the optimizer.")
    for chosen in target.levers:
        if chosen["lever"] not in _ALLOWED:
            raise LeverError(f"{WHAT} does not go with the lever `{chosen['lever']}`", "Leave one of them out.")
    if (target.lever("autocast") or {}).get("dtype") == "float16":
        raise LeverError(f"{WHAT} does not go with autocast in float16 here", 'Use "dtype": "bfloat16".')
    if "microbatches" in lever:
        whole(lever, "microbatches", gpus)
    cut_points(chain_of(target.model), lever.get("stages"), gpus)


def apply(target: Target, lever: Mapping[str, Any], mesh: Any) -> None:
    """Take from the model what is other ranks', and have steps run over the stages."""
    rank, gpus = mesh.get_local_rank(), mesh.size()
    chain = chain_of(target.model)
    starts = cut_points(chain, lever.get("stages"), gpus)
    ends = [*starts[1:], len(chain.blocks)]
    tied = chain.tied()
    _drop(target.model, chain, rank, gpus, starts[rank], ends[rank])
    present = {id(parameter) for parameter in target.model.parameters()}
    for optimizer in target.optimizers():
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) in present]
        # An optimizer does not step over an empty group, but some kernels stumble over one.
        optimizer.param_groups = [group for group in optimizer.param_groups if group["params"]]
    wanted = int(lever.get("microbatches", max(target.accumulation, 2 * gpus)))
    target.pipeline = _Pipeline(target, mesh, rank, gpus, wanted, tied)
    target.notes.append(f"This rank has the blocks {starts[rank]} to {ends[rank] - 1} of {len(chain.blocks)}.")


def _drop(model: Any, chain: Chain, rank: int, gpus: int, start: int, end: int) -> None:
    """Leave this rank's blocks; before them inputs of others are let in, after them the pass ends."""
    for index, name in enumerate(chain.names):
        if start <= index < end:
            continue
        chain.holder[index] = Passed(name)
    if rank > 0:
        first = chain.holder[start]
        first.forward = received(first.forward, chain.names[start])
        for name, module in chain.before():
            if isinstance(module, torch.nn.Embedding):
                model.get_submodule(name.rpartition(".")[0])._modules[name.rpartition(".")[2]] = stand_in(module)
    if rank < gpus - 1:
        last = chain.holder[end - 1]
        forward = last.forward

        def ends_here(*arguments: Any, **named: Any) -> Any:
            raise Ended(forward(*arguments, **named))

        last.forward = ends_here
        gone: list[str] = []
        for name, module in chain.behind():
            if not name.startswith(tuple(gone)) and any(True for _ in module.parameters()):
                gone.append(f"{name}.")
                model.get_submodule(name.rpartition(".")[0])._modules[name.rpartition(".")[2]] = absent(name)


class _Stage(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """What a rank computes of one part of the batch: a hidden state from a hidden state, at last the loss."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.model = target.model
        self._target = target
        self.parts: list[Any] = []
        self.weights: list[Any] = []

    def forward(self, *arguments: Any, place: Any = None) -> Any:
        hidden = None
        if place is None:
            (place,) = arguments
        else:
            (hidden,) = arguments
        number = int(place)
        target = self._target
        with Ended.with_received(hidden):
            try:
                with ExitStack() as stack:
                    for context in target.contexts:
                        stack.enter_context(context())
                    loss = loss_of(self.model, target.loss, self.parts[number])
            except Ended as ended:
                return ended.hidden
        weight = self.weights[number]
        return (loss * (weight.to(loss.device, loss.dtype) if isinstance(weight, torch.Tensor) else weight)).reshape(1)


class _Pipeline:
    """Runs whole steps over the stages; all ranks are given the same batch."""

    def __init__(self, target: Target, mesh: Any, rank: int, gpus: int, wanted: int, tied: list[Any]) -> None:
        self.target, self.rank, self.gpus, self.wanted, self.tied = target, rank, gpus, wanted, tied
        self.group = mesh.get_group()
        self.device = target.device
        self.stage = _Stage(target)
        self.count = 1
        """Parts of a batch that are under way in a step."""
        self._schedules: dict[Any, Any] = {}
        import torch.distributed as dist

        self.ends = dist.new_group([0, gpus - 1]) if tied else None
        for parameter in tied if rank in (0, gpus - 1) else ():
            dist.broadcast(parameter.data, 0, group=self.ends)

    def step(self, batch: Any) -> Any:
        """Forward and backward of all parts; returns the loss, on every rank."""
        import torch.distributed as dist

        count = self.count = _parts(batches.batch_size(batch), self.wanted, self.gpus)
        self.stage.parts = batches.split(batch, count)
        schedule = self._schedule(count)
        target = self.target
        weights = [batches.weigh(target, part) for part in self.stage.parts]
        if any(weight is None for weight in weights):
            self.stage.weights = [1.0] * count
        else:
            total = sum(weights[1:], weights[0])
            self.stage.weights = [weight / total for weight in weights]
        places = torch.arange(count)
        losses: list[Any] = []
        last = self.rank == self.gpus - 1
        if self.rank == 0:
            schedule.step(places)
        elif last:
            schedule.step(place=places, target=torch.zeros(count), losses=losses)
        else:
            schedule.step(place=places)
        self.stage.parts = []
        for parameter in self.tied if self.ends is not None and (last or self.rank == 0) else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=self.ends)
        loss = torch.stack([one.detach().reshape(()) for one in losses]).sum() if last else None
        if loss is None:
            loss = torch.zeros((), device=self.device)
        loss = loss.float()
        dist.broadcast(loss, self.gpus - 1, group=self.group)
        return loss

    def _schedule(self, count: int) -> Any:
        """The schedule for batches of this shape."""
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        leaves = torch.utils._pytree.tree_leaves(self.stage.parts[0])
        shapes = (count, *(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)))
        if shapes not in self._schedules:
            given, made = self._exchanged()
            stage = PipelineStage(
                self.stage, self.rank, self.gpus, self.device, input_args=given, output_args=made, group=self.group
            )
            schedule = Schedule1F1B(stage, count, loss_fn=lambda output, _: output.sum(), scale_grads=False)
            self._schedules = {shapes: schedule}
        return self._schedules[shapes]

    def _exchanged(self) -> tuple[Any, Any]:
        """Tensors without memory of the shape that a stage gets and of the one that it gives: by running it once, on
        zeros. The stages tell each other; PyTorch's own way to do so differs from version to version.
        """
        import torch.distributed as dist

        def peer(rank: int) -> int:
            return int(dist.get_global_rank(self.group, rank))

        def like(shape: Any, dtype: Any) -> Any:
            return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)

        self.stage.weights = [1.0] * len(self.stage.parts)
        place = torch.zeros(1, dtype=torch.int64)
        given = place.to("meta")
        arguments: tuple[Any, ...] = (place,)
        named: dict[str, Any] = {}
        if self.rank > 0:
            told: list[Any] = [None]
            receive = dist.recv_object_list
            receive(told, src=peer(self.rank - 1), group=self.group, device=self.device, **_batched(receive))
            shape, dtype = told[0]
            given = like(shape, dtype)
            arguments, named = (torch.zeros(shape, dtype=dtype, device=self.device),), {"place": place}
        with torch.no_grad():
            out = self.stage(*arguments, **named)
        made = like(tuple(out.shape), out.dtype)
        if self.rank < self.gpus - 1:
            told = [(tuple(out.shape), out.dtype)]
            send = dist.send_object_list
            send(told, dst=peer(self.rank + 1), group=self.group, device=self.device, **_batched(send))
        return given, made


def _batched(exchange: Any) -> dict[str, Any]:
    """Over the communicator that all ranks have: alone, two of them would make one of their own, which takes memory."""
    return {"use_batch": True} if "use_batch" in inspect.signature(exchange).parameters else {}


def _parts(size: int, wanted: int, gpus: int) -> int:
    """Parts of equal size: as many as wanted or fewer, and one for each stage at least."""
    for count in range(min(wanted, size), gpus - 1, -1):
        if size % count == 0:
            return count
    raise LeverError(
        f"{WHAT}: a batch of {size} has no {gpus} to {wanted} parts of equal size",
        f"Use a batch that is a multiple of {gpus}.",
    )
