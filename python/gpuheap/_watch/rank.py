"""The number of this process among those of the job."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["rank"]

_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def rank() -> int | None:
    """By PyTorch if it has a process group, else by what launchers set; None for a process on its own."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) if distributed.get_world_size() > 1 else None
    for name in _VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None
