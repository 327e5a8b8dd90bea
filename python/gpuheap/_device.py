"""How much device memory there is and who has taken it, before and after a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpuheap import _nvml
from gpuheap._frameworks import jax as jax_
from gpuheap._frameworks import tensorflow as tensorflow_
from gpuheap._frameworks.cupy import loaded_cupy, pool_bytes
from gpuheap._frameworks.torch import cuda_devices
from gpuheap._tensors import loaded_torch

__all__ = ["Memory", "measure", "nvml_free"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One look at the devices that this process uses, all of them together."""

    source: str | None
    """Who told `free`: `torch`, `cupy` or `NVML`; None if no device is in use."""
    free: int | None
    """Bytes that the driver could still give to anyone."""
    total: int | None
    """Bytes on the devices."""
    reserved: int
    """Bytes that the frameworks' allocators have taken from the driver. TensorFlow does not tell: what it has handed
    out stands for it."""
    allocated: int
    """Bytes that they have handed out."""
    by_framework: dict[str, int] = field(default_factory=dict)
    """The same by framework: `PyTorch`, `CuPy`, `JAX`, `TensorFlow`; those that have handed out something."""


def nvml_free() -> tuple[int, int] | None:
    """Free and total bytes of all GPUs of the machine by the driver's library; None without one."""
    devices = _nvml.devices()
    if not devices:
        return None
    free = total = 0
    for device in devices:
        if device.free is None or device.total is None:
            return None
        free, total = free + device.free, total + device.total
    return free, total


def _torch_xpu(torch: Any) -> tuple[int, int] | None:
    xpu = getattr(torch, "xpu", None)
    if xpu is None or not getattr(xpu, "is_initialized", bool)():
        return None
    return int(xpu.memory_reserved()), int(xpu.memory_allocated())


def measure() -> Memory:
    """Looks. Costs some microseconds per device, and the same again for each allocator."""
    source: str | None = None
    free = total = None
    taken: dict[str, tuple[int, int]] = {}
    torch, cupy, tensorflow = loaded_torch(), loaded_cupy(), tensorflow_.loaded_tensorflow()
    if torch is not None:
        reserved = allocated = 0
        devices = cuda_devices(torch)
        for device in devices:
            device_free, device_total = torch.cuda.mem_get_info(device)
            free, total = (free or 0) + int(device_free), (total or 0) + int(device_total)
            reserved += int(torch.cuda.memory_reserved(device))
            allocated += int(torch.cuda.memory_allocated(device))
            source = "torch"
        xpu = _torch_xpu(torch)
        if xpu is not None:
            reserved, allocated = reserved + xpu[0], allocated + xpu[1]
        taken["PyTorch"] = reserved, allocated
    if cupy is not None:
        taken["CuPy"] = pool_bytes(cupy)
        if source is None and taken["CuPy"][0]:
            device_free, device_total = cupy.cuda.runtime.memGetInfo()
            source, free, total = "cupy", int(device_free), int(device_total)
    if jax_.loaded_jax() is not None:
        taken["JAX"] = jax_.pool_bytes()
    if tensorflow is not None:
        used = tensorflow_.allocated_bytes(tensorflow)
        taken["TensorFlow"] = used, used
    if source is None and (cupy is not None or jax_.loaded_jax() is not None or tensorflow is not None):
        seen = nvml_free()
        if seen is not None:
            source, free, total = "NVML", seen[0], seen[1]
    return Memory(
        source,
        free,
        total,
        sum(reserved for reserved, _ in taken.values()),
        sum(allocated for _, allocated in taken.values()),
        {name: allocated for name, (_, allocated) in taken.items() if allocated},
    )
