"""The lever `optimizer_state`: the moments of the optimizer in bfloat16 between steps, half their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import one_of, whole
from gpuheap._fit.apply.steps import check_independent
from gpuheap._fit.apply.streamed import stream
from gpuheap._fit.apply.target import LeverError, Target

__all__ = ["CHUNK_BYTES", "apply", "check", "check_streams"]

WHAT = "the lever `optimizer_state`"
CHUNK_BYTES = 256 << 20


def check_streams(target: Target, lever: Mapping[str, Any], what: str, instead: str) -> None:
    """The lever ``what`` may keep the state in another form; ``instead`` says what to do where sharding forbids it."""
    whole(lever, "chunk_bytes", 1, CHUNK_BYTES)
    optimizer = target.one_optimizer(what)
    form = (target.lever("optimizer") or {}).get("form")
    if form in ("8bit", "4bit", "in_backward"):
        raise LeverError(f"{what} does not go with the optimizer's form `{form}`", "Leave one of them out.")
    shard = target.lever("shard")
    if shard is not None and shard.get("form") in ("fsdp2", "tensor", "pipeline"):
        raise LeverError(f"{what} does not go with {shard['form']} here", instead)
    check_independent(optimizer, what)


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The optimizer steps its parameters one by one, and nobody else has taken its step over."""
    one_of(lever, "dtype", ("bfloat16",))
    check_streams(target, lever, WHAT, "Leave one of them out.")


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Keep the state rounded."""
    stream(target, target.optimizer, _Rounded(), whole(lever, "chunk_bytes", 1, CHUNK_BYTES))
    target.notes.append(
        "The optimizer's state is bfloat16 between steps, rounded at random so that small updates add up; losses "
        "differ from those of float32 by that noise."
    )


class _Rounded:
    """float32 as bfloat16, rounded up or down with the odds of the distance.

    To the nearest, a second moment that changes by a thousandth each step would never change.
    """

    def __init__(self) -> None:
        self._generators: dict[Any, Any] = {}

    def packs(self, value: Any, parameter: Any) -> bool:
        return bool(value.dtype == torch.float32 and value.dim() and value.shape == parameter.shape)

    def pack(self, value: Any, before: Any) -> Any:
        bits = value.contiguous().view(torch.int32)
        noise = torch.randint(
            0, 1 << 16, bits.shape, dtype=torch.int32, device=value.device, generator=self._generator(value.device)
        )
        noise.add_(bits).bitwise_and_(-(1 << 16))
        rounded = noise.view(torch.float32)
        # What is no number must stay none: noise could carry it over.
        rounded = torch.where(value.isfinite(), rounded, value)
        if before is not None and before.dtype == torch.bfloat16:
            return before.copy_(rounded)
        return rounded.to(torch.bfloat16)

    def unpack(self, kept: Any, parameter: Any) -> Any:
        return kept.float() if kept.dtype == torch.bfloat16 else kept

    def finish(self) -> None:
        return None

    def _generator(self, device: Any) -> Any:
        """Random numbers of its own: the program's stay as they are."""
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]
