"""How the zoo's models are trained: the settings people choose, and one step in each of them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_spec import Spec, adamw, sgd

DEVICE = os.environ.get("ZOO_DEVICE", "cuda")
"""What the programs write in `torch.autocast(...)`; tests without a GPU set it to cpu."""

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "autocast_bf16": [{"lever": "autocast", "dtype": "bfloat16"}],
    "autocast_fp16": [{"lever": "autocast", "dtype": "float16"}],
    "params_bf16": [{"lever": "parameters", "dtype": "bfloat16"}],
    "checkpoint": [{"lever": "checkpoint", "modules": "blocks"}],
    "checkpoint_autocast_bf16": [
        {"lever": "checkpoint", "modules": "blocks"},
        {"lever": "autocast", "dtype": "bfloat16"},
    ],
    "foreach_off": [{"lever": "optimizer", "form": "for_loop"}],
    "fused": [{"lever": "optimizer", "form": "fused"}],
    "sgd": [{"lever": "optimizer_class", "name": "SGD"}],
    "sgd_foreach_off": [{"lever": "optimizer_class", "name": "SGD"}, {"lever": "optimizer", "form": "for_loop"}],
    "adamw": [{"lever": "optimizer_class", "name": "AdamW"}],
    "accumulate4": [{"lever": "accumulate", "factor": 4}],
    "keep_gradients": [{"lever": "zero_grad", "set_to_none": False}],
    "evaluation": [{"lever": "evaluation"}],
    "expandable": [{"lever": "allocator", "conf": "expandable_segments:True"}],
    "channels_last": [{"lever": "memory_format", "form": "channels_last"}],
}
"""Settings by the name they have in records. `"modules": "blocks"` stands for the model's own list of blocks."""

FORMS: dict[str, dict[str, bool]] = {
    "for_loop": {"foreach": False},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
}
CLASSES: dict[str, Callable[..., Any]] = {"SGD": sgd, "AdamW": adamw}


def lever(levers: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((one for one in levers if one["lever"] == name), None)


def floats_to(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating-point tensors in another precision, as a program in bf16 prepares it."""
    move = lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t  # noqa: E731
    return torch.utils._pytree.tree_map(move, batch)


def takes_model(loss: Any) -> bool:
    return next(iter(inspect.signature(loss).parameters), "") == "model"


def loss_of(model: nn.Module, loss: Any, batch: Any) -> torch.Tensor:
    """The scalar to go backward from, by the form of `loss`; `Spec` lists the forms."""
    if loss is None:
        result = model(**batch)
        found: torch.Tensor = result["loss"] if isinstance(result, dict) else result.loss
    elif takes_model(loss):
        found = loss(model, batch)
    else:
        inputs, target = batch
        found = loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), target)
    return found


def pieces(batch: Any, count: int) -> list[Any]:
    """The batch cut along the first dimension of everything in it."""

    def cut(value: Any, i: int) -> Any:
        if isinstance(value, torch.Tensor):
            return value.chunk(count)[i]
        if isinstance(value, list):
            size = -(-len(value) // count)
            return value[i * size : (i + 1) * size]
        if isinstance(value, dict):
            return {key: cut(part, i) for key, part in value.items()}
        return tuple(cut(part, i) for part in value)

    return [cut(batch, i) for i in range(count)]


def under_autocast(loss: Any, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    def autocast_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=dtype):
            return loss_of(model, loss, batch)

    return autocast_loss


def whole(step: Callable[..., None]) -> Callable[..., None]:
    """Marks a step that does everything itself, from zero_grad to the optimizer."""
    step.whole_step = True  # type: ignore[attr-defined]
    return step


def scaled_step(loss: Any) -> Callable[..., None]:
    scaler = torch.amp.GradScaler(DEVICE)

    @whole
    def step(model: nn.Module, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        value = loss_of(model, loss, batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def accumulating_step(loss: Any, factor: int) -> Callable[..., None]:
    @whole
    def step(model: nn.Module, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        for piece in pieces(batch, factor):
            (loss_of(model, loss, piece) / factor).backward()
        optimizer.step()

    return step


def keeping_step(loss: Any) -> Callable[..., None]:
    @whole
    def step(model: nn.Module, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, loss, batch).backward()
        optimizer.step()

    return step


def put_checkpoints(model: nn.Module, names: list[str]) -> None:
    """The modules' forward passes are run again in the backward pass instead of being kept."""
    from torch.utils.checkpoint import checkpoint

    if hasattr(model, "gradient_checkpointing_enable"):
        frozen = any(not parameter.requires_grad for parameter in model.parameters())
        if frozen and hasattr(model, "enable_input_require_grads"):
            # Adapters on frozen weights: as people do it, though the form of checkpoint used here does not need it.
            model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    for name in names:
        module = model.get_submodule(name)
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]


Place = Callable[[nn.Module], nn.Module]


def assemble(
    spec: Spec, size: int, levers: list[dict[str, Any]], place: Place | None = None
) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, loss and batch under these levers, as `gpuheap fit` takes them.

    `place` moves the model to where it is trained, before the optimizer is made, as programs do; without it everything
    stays where the current default device has put it.
    """
    model = spec.build()
    batch = spec.batch(size)
    loss: Any = spec.loss
    own_step = loss is not None and "optimizers" in inspect.signature(loss).parameters
    model.train()
    parameters = lever(levers, "parameters")
    if parameters:
        dtype = getattr(torch, parameters["dtype"])
        model.to(dtype)
        batch = floats_to(batch, dtype)
    if place is not None:
        model = place(model)
    if lever(levers, "memory_format"):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batch = (batch[0].to(memory_format=torch.channels_last), batch[1])
    if lever(levers, "checkpoint"):
        if spec.blocks is None:
            raise ValueError("this model has no list of blocks to checkpoint")
        put_checkpoints(model, spec.blocks(model))
    options = FORMS[form["form"]] if (form := lever(levers, "optimizer")) else {}
    chosen = CLASSES[named["name"]] if (named := lever(levers, "optimizer_class")) else spec.optimizer
    optimizer: Any = chosen(model, **options)
    if own_step:
        return model, optimizer, whole(loss), batch
    autocast = lever(levers, "autocast")
    if autocast:
        loss = under_autocast(loss, getattr(torch, autocast["dtype"]))
    if lever(levers, "evaluation"):
        model.eval()
        return model, None, loss, batch
    if accumulate := lever(levers, "accumulate"):
        loss = accumulating_step(loss, int(accumulate["factor"]))
    elif lever(levers, "zero_grad"):
        loss = keeping_step(loss)
    elif autocast and autocast["dtype"] == "float16":
        loss = scaled_step(loss)
    return model, optimizer, loss, batch


def run_step(program: tuple[Any, Any, Any, Any], mark: Callable[[str], None] = lambda phase: None) -> None:
    """One step; `mark` is told each phase that is over."""
    model, optimizer, loss, batch = program
    if getattr(loss, "whole_step", False):
        loss(model, optimizer, batch)
        mark("step")
    elif optimizer is None:
        with torch.no_grad():
            value = loss_of(model, loss, batch)
        mark("evaluation")
        del value
    else:
        optimizer.zero_grad()
        mark("zero_grad")
        value = loss_of(model, loss, batch)
        mark("forward")
        value.backward()
        mark("backward")
        optimizer.step()
        mark("optimizer")
