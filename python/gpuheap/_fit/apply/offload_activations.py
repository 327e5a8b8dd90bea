"""The lever `offload_activations`: what autograd saves within named modules waits on the host until backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import whole
from gpuheap._fit.apply.offloader import Offloader
from gpuheap._fit.apply.recompute import disable_caches
from gpuheap._fit.apply.target import Target, modules_of, set_forward

__all__ = ["apply", "check"]

WHAT = "the lever `offload_activations`"
_WINDOW = 512 << 20
_LEAST = 1 << 20


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The modules are there."""
    modules_of(target, lever, WHAT)
    whole(lever, "window_bytes", 1, _WINDOW)
    whole(lever, "least_bytes", 0, _LEAST)


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Put one offloader around the forward passes of all modules: its bounds are for all together."""
    stays = {tensor.untyped_storage()._cdata for tensor in target.tensors()}
    offloader = Offloader(
        target.device,
        window_bytes=whole(lever, "window_bytes", 1, _WINDOW),
        least_bytes=whole(lever, "least_bytes", 0, _LEAST),
        is_kept=lambda tensor: _is_weight(tensor) or tensor.untyped_storage()._cdata in stays,
    )
    disable_caches(target)
    for _, module in modules_of(target, lever, WHAT):
        set_forward(target, module, functools.partial(_saving_to_host, offloader))


def _saving_to_host(
    offloader: Offloader, module: Any, forward: Callable[..., Any], arguments: Any, named: dict[str, Any]
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    with offloader.hooks():
        return forward(*arguments, **named)


def _is_weight(tensor: Any) -> bool:
    """A parameter or a view of one: it is on the device anyway. Sharded ones get new storages in each pass."""
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.is_leaf and base.requires_grad
