"""The lever `shard`: the program over several GPUs, by PyTorch's own engines, started by torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply import pipeline, tensor_parallel
from gpuheap._fit.apply.choice import one_of, whole
from gpuheap._fit.apply.forward import is_whole_step
from gpuheap._fit.apply.ranks import mesh_of, require_ranks
from gpuheap._fit.apply.target import LeverError, Target, module_named

__all__ = ["FORMS", "apply", "blocks_of", "check"]

WHAT = "the lever `shard`"
FORMS = ("data", "fsdp2", "tensor", "pipeline")


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The ranks are there, and the model has what the form needs."""
    form = one_of(lever, "form", FORMS)
    gpus = whole(lever, "gpus", 2)
    require_ranks(gpus, WHAT)
    for optimizer in target.optimizers():
        if optimizer.state and form != "data":
            raise LeverError(
                f"the optimizer has taken steps already, and its state cannot be split for {form}",
                "Apply the plan before the first step; load a checkpoint with `torch.distributed.checkpoint` after it.",
            )
    if form in ("fsdp2", "data") and is_whole_step(target.loss) and form == "data":
        raise LeverError(f"{WHAT} needs the loss, but this program does its whole step itself", "Return the loss.")
    if form == "fsdp2":
        if not blocks_of(target.model, lever):
            raise LeverError(f"{WHAT}: no repeated blocks were found to shard", 'Name them in "modules".')
        if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in target.model.modules()):
            target.notes.append(
                "Batch norms take their statistics over each rank's part of the batch: "
                "`SyncBatchNorm.convert_sync_batchnorm(model)` before the plan takes them over all."
            )
    elif form == "tensor":
        tensor_parallel.check(target, lever, gpus)
    elif form == "pipeline":
        pipeline.check(target, lever, gpus)


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Shard. What a form puts in place of parameters cannot be taken back: it comes after everything that can fail."""
    form = one_of(lever, "form", FORMS)
    gpus = whole(lever, "gpus", 2)
    mesh = mesh_of(target.device, gpus)
    if form == "data":
        target.model = torch.nn.parallel.DistributedDataParallel(
            target.model,
            device_ids=[target.device.index] if target.device.type == "cuda" else None,
            process_group=mesh.get_group(),
            gradient_as_bucket_view=True,
        )
        target.ranks, target.group = gpus, mesh.get_group()
    elif form == "fsdp2":
        _fully_shard(target, lever, mesh)
        target.ranks, target.group = gpus, mesh.get_group()
    elif form == "tensor":
        tensor_parallel.apply(target, mesh)
    else:
        pipeline.apply(target, lever, mesh)


def blocks_of(model: Any, lever: Mapping[str, Any]) -> list[Any]:
    """The modules that are sharded for themselves: those named, else the entries of lists of alike blocks."""
    named = lever.get("modules")
    if named:
        return [module_named(model, name, WHAT) for name in named]
    found: list[Any] = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1:
            blocks = [block for block in module if sum(1 for _ in block.parameters()) > 1]
            # A list of heads or of activations is none of blocks; nor is what lies within a block.
            inside = any(block is one for outer in found for one in outer.modules() for block in blocks)
            if len(blocks) > 1 and not inside:
                found.extend(blocks)
    return found


def _fully_shard(target: Target, lever: Mapping[str, Any], mesh: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    names = {parameter: name for name, parameter in target.model.named_parameters()}
    places = _places(target, names)
    autocast = target.lever("autocast")
    options: dict[str, Any] = {"mesh": mesh}
    if autocast is not None and autocast.get("dtype") == "bfloat16":
        # Gathered in 16 bits, as autocast would make of them anyway: half the bytes on the wire.
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks_of(target.model, lever):
        fully_shard(block, **options)
    fully_shard(target.model, **options)
    _put_back(target, dict(target.model.named_parameters()), places)


def _places(target: Target, names: Mapping[Any, str]) -> list[list[list[str | None]]]:
    """For each optimizer and group the names of its parameters: their objects are about to change."""
    found = []
    for optimizer in target.optimizers():
        groups: list[list[str | None]] = []
        for group in optimizer.param_groups:
            groups.append([names.get(parameter) for parameter in group["params"]])
        found.append(groups)
    return found


def _put_back(target: Target, parameters: Mapping[str, Any], places: list[list[list[str | None]]]) -> None:
    """Have the optimizer step the parameters that the model has now."""
    for optimizer, groups in zip(target.optimizers(), places, strict=True):
        for group, names in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = [
                parameter if name is None else parameters[name]
                for parameter, name in zip(group["params"], names, strict=True)
                if name is None or name in parameters
            ]
