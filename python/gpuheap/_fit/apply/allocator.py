"""The lever `allocator`: settings of PyTorch's CUDA allocator, which it reads when it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.apply.target import LeverError, Target
from gpuheap._fit.start import VARIABLE

__all__ = ["apply", "check"]


def check(target: Target, lever: Mapping[str, Any]) -> None:
    """The settings are words that PyTorch can read."""
    conf = lever.get("conf")
    parts = conf.split(",") if isinstance(conf, str) else []
    if not parts or not all(key.strip() and value.strip() for key, _, value in (part.partition(":") for part in parts)):
        raise LeverError(f"the lever `allocator` has conf `{conf}`", 'Write settings as "expandable_segments:True".')


def apply(target: Target, lever: Mapping[str, Any]) -> None:
    """Set the variable where CUDA has not started, else hand the settings to the running allocator."""
    conf = str(lever["conf"])
    target.environment[VARIABLE] = conf
    before = os.environ.get(VARIABLE)
    if before == conf:
        return
    os.environ[VARIABLE] = conf

    def undo() -> None:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before

    target.undo_by(undo)
    if not torch.cuda.is_available():
        return
    # The variable is read when torch is imported; this works later as well, for segments taken from now on.
    try:
        # The older name warns where the newer one is there.
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (change or torch.cuda.memory._set_allocator_settings)(conf)
    except RuntimeError as error:
        raise LeverError(f"PyTorch refused the allocator settings `{conf}`: {error}") from error
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 0:
        target.notes.append(
            f"PyTorch had reserved memory before the allocator's settings changed: start the program with "
            f"{VARIABLE}={conf} for the planned peak."
        )
