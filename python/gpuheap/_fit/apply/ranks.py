"""The processes that torchrun has started, and the mesh of their devices."""

from __future__ import annotations

import os
from typing import Any

from gpuheap._fit.apply.target import LeverError

__all__ = ["mesh_of", "require_ranks", "torchrun_line"]


def torchrun_line(gpus: int, program: str = "train.py") -> str:
    """What to type to start a program on that many GPUs of one machine."""
    return f"torchrun --standalone --nproc-per-node {gpus} {program}"


def require_ranks(gpus: int, what: str) -> None:
    """`torch.distributed` runs with that many ranks."""
    import torch.distributed as dist

    if not dist.is_available():
        raise LeverError(f"{what} needs `torch.distributed`, which this PyTorch was built without")
    if not dist.is_initialized():
        started = "WORLD_SIZE" in os.environ
        raise LeverError(
            f"{what} needs {gpus} processes that know each other, and `torch.distributed` is not initialised",
            "Call `torch.distributed.init_process_group()` before the plan is applied."
            if started
            else f"Start it as `{torchrun_line(gpus)}`, and call `torch.distributed.init_process_group()` in it.",
        )
    size = dist.get_world_size()
    if size != gpus:
        raise LeverError(
            f"{what} is for {gpus} GPUs, and {size} processes are running", f"Start it as `{torchrun_line(gpus)}`."
        )


def mesh_of(device: Any, gpus: int) -> Any:
    """One dimension of devices, a rank each."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (gpus,))
