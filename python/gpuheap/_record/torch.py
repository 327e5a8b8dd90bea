"""The PyTorch that is recorded."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from gpuheap.errors import Error

__all__ = ["is_out_of_memory", "usable_torch"]


def usable_torch() -> Any:
    """PyTorch, imported if it is not yet: who asks to record it wants it. Raises where it sees no GPU."""
    torch: Any = sys.modules.get("torch") or import_module("torch")
    if not torch.cuda.is_available():
        raise Error(
            "Failed to record\n  cause: PyTorch sees no GPU (`torch.cuda.is_available()` is false)",
            "a recording made elsewhere can be explained here: `gpuheap explain FILE`",
        )
    return torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch says by it that memory ran out."""
    torch: Any = sys.modules.get("torch")
    kinds = [getattr(torch, "OutOfMemoryError", None), getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)]
    return any(kind is not None and isinstance(error, kind) for kind in kinds)
