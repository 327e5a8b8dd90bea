"""JAX: compiled functions, and on request the buffers themselves."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["host_bytes", "in_use", "loaded_jax", "pool_bytes", "steps"]


def loaded_jax() -> Any | None:
    """The `jax` module if the program has loaded it to the end, else None."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and hasattr(jax, "clear_caches") else None


def in_use() -> bool:
    """Whether JAX has a device. To ask JAX for one would take most of a GPU's memory."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return bool(started()) if started is not None else loaded_jax() is not None


def _clients() -> list[Any]:
    """What JAX runs on, each with devices and arrays; empty if this version keeps it elsewhere."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = getattr(bridge, "backends", None)
    if backends is None or not in_use():
        return []
    found: dict[int, Any] = {id(client): client for client in backends().values()}
    return list(found.values())


def _live_arrays(jax: Any) -> list[Any]:
    # `jax.live_arrays()` alone tells of the default platform only: not of the host, if there is a GPU.
    clients = _clients()
    return [array for client in clients for array in client.live_arrays()] if clients else list(jax.live_arrays())


def pool_bytes() -> tuple[int, int]:
    """What JAX's allocators have taken from the driver, and what of it is in use. They tell of accelerators only."""
    taken = used = 0
    for client in _clients():
        for device in client.local_devices():
            counters = device.memory_stats() or {}
            handed_out = int(counters.get("bytes_in_use", 0))
            used += handed_out
            # Without a pool every buffer comes from the driver.
            taken += int(counters.get("pool_bytes", handed_out))
    return taken, used


def host_bytes() -> int:
    """What JAX's live arrays take in the host's memory."""
    return sum(
        int(array.nbytes)
        for client in _clients()
        if client.platform == "cpu"
        for array in client.live_arrays()
        if not array.is_deleted()
    )


def steps(jax: Any, *, buffers: bool) -> list[Step]:
    """What JAX can give back. With `buffers` every live array is deleted: the program cannot use one afterwards."""

    def need_device() -> None:
        if not in_use():
            raise NotApplicable("JAX is not in use")

    def caches() -> str:
        need_device()
        jax.clear_caches()
        return "functions compile again when they are called again"

    def arrays() -> str:
        need_device()
        live = [array for array in _live_arrays(jax) if not array.is_deleted()]
        if not live:
            raise NotApplicable("no live arrays")
        taken = 0
        for array in live:
            taken += int(array.nbytes)
            array.delete()
        return f"{len(live)} {'array' if len(live) == 1 else 'arrays'}, {bytes_text(taken)}"

    made = [Step("JAX's compiled functions", caches)]
    return [Step("JAX's live arrays", arrays), *made] if buffers else made
