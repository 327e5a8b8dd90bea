"""The lever `offload_optimizer`: the optimizer's state in pinned host memory between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.choice import whole
from gpuheap._fit.apply.optimizer_state import CHUNK_BYTES, check_streams
from gpuheap._fit.apply.streamed import stream
from gpuheap._fit.apply.target import Target

__all__ = ["apply", "check"]

WHAT = "the lever `offload_optimizer`"


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The optimizer steps its parameters one by one, and nobody else has taken its step over."""
    check_streams(target, lever, WHAT, "FSDP2 has `CPUOffloadPolicy` of its own for that.")


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Keep the state on the host."""
    device = target.device
    stream(target, target.optimizer, _OnHost(device), whole(lever, "chunk_bytes", 1, CHUNK_BYTES))
    if device.type != "cuda":
        target.notes.append("The model is on the CPU: its optimizer's state is on the host in any case.")


class _OnHost:
    """State in pinned memory, taken once and used at every step; copies go beside each other."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._out = torch.cuda.Stream(device) if self.cuda else None
        self._leaving: list[Any] = []

    def packs(self, value: Any, parameter: Any) -> bool:
        # A counter of steps stays where its optimizer wants it.
        return bool(value.dim() and value.shape == parameter.shape)

    def pack(self, value: Any, before: Any) -> Any:
        if not self.cuda:
            return value
        host = before if before is not None and before.device.type == "cpu" else None
        if host is None:
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        assert self._out is not None
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(value, non_blocking=True)
        # Held until the copy is done, which is at the latest when the next piece comes.
        self._leaving.append(value)
        return host

    def unpack(self, kept: Any, parameter: Any) -> Any:
        if not self.cuda or kept.device.type != "cpu":
            return kept
        self.finish()
        return kept.to(parameter.device, non_blocking=True)

    def finish(self) -> None:
        """Let the program's stream wait for copies to the host, and then drop what they were made of."""
        if self._leaving:
            torch.cuda.current_stream(self.device).wait_stream(self._out)
            self._leaving.clear()
