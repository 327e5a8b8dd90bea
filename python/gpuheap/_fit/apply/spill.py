"""The lever `spill`: host memory behind what does not fit, by `gpuheap run` around the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuheap._fit.apply.choice import whole
from gpuheap._fit.apply.target import Target

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The amount is one."""
    whole(lever, "bytes", 0)


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Say what to start the program under: a running program cannot be put below the shim."""
    target.command = ["gpuheap", "run", "--spill", str(whole(lever, "bytes", 0))]
    budget = lever.get("budget_bytes")
    if isinstance(budget, int):
        target.command[2:2] = ["--budget", str(budget)]
    target.notes.append(f"Start the program as `{' '.join(target.command)} -- python ...`: spilling is set up there.")
