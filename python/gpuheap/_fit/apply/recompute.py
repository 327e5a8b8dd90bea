"""What has to hold when a module's forward runs a second time in the backward pass: no trace but the activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["check_repeatable", "contexts_around", "disable_caches", "without_caches"]

# Arguments by which decoders of Hugging Face hand caches on: a second run would append to them once more.
_CACHES = ("past_key_value", "past_key_values", "layer_past", "cache", "mems")


def check_repeatable(model: Any, modules: list[tuple[str, Any]], what: str) -> None:
    """Refuse modules whose forward changes something that cannot be put back."""
    for name, module in modules:
        for inner_name, inner in module.named_modules():
            if type(inner).__name__ in ("_SpectralNorm", "SpectralNorm"):
                where = f"{name}.{inner_name}".strip(".")
                raise LeverError(
                    f"{what}: `{where}` changes its estimate in every forward pass, so it cannot be computed again",
                    f"Leave `{name}` out of the lever.",
                )
            if isinstance(inner, torch.jit.ScriptModule):
                raise LeverError(
                    f"{what}: `{name}` is a TorchScript module, which cannot be wrapped", f"Leave `{name}` out."
                )


def disable_caches(target: Target) -> None:
    """Training needs no key-value cache, and one that is filled twice is wrong."""
    for module in target.model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            target.set(config, "use_cache", False)


def without_caches(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a block without caches."""
    changed: dict[str, Any] = {name: None for name in _CACHES if arguments.get(name) is not None}
    if arguments.get("use_cache"):
        changed["use_cache"] = False
    return {**arguments, **changed} if changed else arguments


Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


def contexts_around(module: Any, inner: Contexts | None = None) -> Contexts | None:
    """The contexts of the first and of the second run, for `torch.utils.checkpoint`; None if nothing is needed.

    Running statistics of norms are updated by the first run alone.
    """
    norms = [
        one
        for one in module.modules()
        if isinstance(one, torch.nn.modules.batchnorm._NormBase) and one.track_running_stats
    ]
    if not norms:
        return inner

    def both() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first, second = inner() if inner is not None else (nullcontext(), nullcontext())
        stack = ExitStack()
        # The inner context is entered last: selective checkpointing has to see the operators as they were.
        return first, _Both(stack, _still(norms), second)

    return both


class _Both(AbstractContextManager[Any]):
    """Two contexts as one, entered when this one is."""

    def __init__(self, stack: ExitStack, outer: Any, inner: Any) -> None:
        self.stack, self.parts = stack, (outer, inner)

    def __enter__(self) -> None:
        for part in self.parts:
            self.stack.enter_context(part)

    def __exit__(self, *error: Any) -> bool | None:
        return self.stack.__exit__(*error)


@contextmanager
def _still(norms: list[Any]) -> Iterator[None]:
    """Norms that compute as ever and leave their running statistics as they are.

    With a momentum of 0 the new statistics weigh nothing; without a counter none is advanced. To take the statistics
    away instead would change what autograd saves, which the second run must repeat.
    """
    before = [(norm, norm.momentum, norm._buffers.get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, counter in before:
            norm.momentum = momentum
            norm._buffers["num_batches_tracked"] = counter
