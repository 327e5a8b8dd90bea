"""JAX, TensorFlow and CuPy: how much they have handed out. None of them counts its blocks."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._frameworks.cupy import pool_bytes
from gpuheap._watch.source import Around, Counters

__all__ = ["Cupy", "Jax", "TensorFlow"]


class Jax:
    """JAX's devices, once it has started them itself."""

    collects = False
    paced = True

    def __init__(self, jax: Any) -> None:
        """`jax` is the loaded module."""
        self._jax = jax
        self._devices: dict[str, Any] = {}

    def devices(self) -> list[str]:
        """Devices that tell their memory: not the CPU."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        # Asking for devices would start the backend, which takes most of every GPU.
        if bridge is None or not getattr(bridge, "_backends", None):
            return []
        found = {f"jax:{device.id}": device for device in self._jax.local_devices()}
        self._devices = {name: device for name, device in found.items() if device.memory_stats()}
        return list(self._devices)

    def counters(self, device: str) -> Counters:
        """What its allocator counts."""
        stats = self._devices[device].memory_stats()
        used = int(stats["bytes_in_use"])
        pool = int(stats.get("pool_bytes") or stats.get("bytes_reserved") or 0)
        peak = stats.get("peak_bytes_in_use")
        most = stats.get("peak_pool_bytes")
        return (used, None, max(used, pool), None if most is None else peak, most, 0, 0)

    def around(self, device: str) -> Around:
        """The most that JAX may take, which is what it calls its limit."""
        stats = self._devices[device].memory_stats()
        limit = stats.get("bytes_limit")
        if not limit:
            return Around()
        used = max(int(stats["bytes_in_use"]), int(stats.get("pool_bytes") or 0))
        return Around(free=max(int(limit) - used, 0), total=int(limit))


class TensorFlow:
    """TensorFlow's GPUs, once it has started them itself. What it has taken from the driver it does not tell."""

    collects = False
    paced = True

    def __init__(self, tensorflow: Any) -> None:
        """`tensorflow` is the loaded module."""
        self._tensorflow = tensorflow

    def devices(self) -> list[str]:
        """`GPU:0` and so on."""
        eager = sys.modules.get("tensorflow.python.eager.context")
        context = None if eager is None else eager.context_safe()
        if eager is not None and (context is None or not getattr(context, "_initialized", True)):
            return []
        devices = self._tensorflow.config.list_logical_devices("GPU")
        return [device.name.removeprefix("/device:") for device in devices]

    def counters(self, device: str) -> Counters:
        """What is in use."""
        used = int(self._tensorflow.config.experimental.get_memory_info(device)["current"])
        return (used, None, used, None, None, 0, 0)

    def around(self, device: str) -> Around:
        """Nothing is known."""
        return Around()


class Cupy:
    """CuPy's default pool."""

    collects = False
    paced = True

    def __init__(self, cupy: Any) -> None:
        """`cupy` is the loaded module."""
        self._cupy = cupy

    def devices(self) -> list[str]:
        """The current device, once the pool has taken anything."""
        return [f"cupy:{int(self._cupy.cuda.Device().id)}"] if pool_bytes(self._cupy)[0] else []

    def counters(self, device: str) -> Counters:
        """What the pool has taken, and what of it is in use."""
        total, used = pool_bytes(self._cupy)
        return (used, None, total, None, None, 0, 0)

    def around(self, device: str) -> Around:
        """By the runtime."""
        free, total = self._cupy.cuda.runtime.memGetInfo()
        limit = int(self._cupy.get_default_memory_pool().get_limit())
        return Around(int(free), int(total), limit=limit or None)
