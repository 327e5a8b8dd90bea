"""CuPy: its plan cache and its pools of device and pinned memory."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["loaded_cupy", "pool_bytes", "steps"]


def loaded_cupy() -> Any | None:
    """The `cupy` module if the program has loaded it to the end, else None."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and hasattr(cupy, "get_default_memory_pool") else None


def pool_bytes(cupy: Any) -> tuple[int, int]:
    """What CuPy's default pool has taken from the driver, and what of it is in use."""
    pool = cupy.get_default_memory_pool()
    return int(pool.total_bytes()), int(pool.used_bytes())


def steps(cupy: Any) -> list[Step]:
    """What CuPy can give back. Blocks in use stay."""

    def plans() -> str:
        fft = sys.modules.get("cupy.fft")
        config = getattr(fft, "config", None)
        if config is None:
            raise NotApplicable("no plans")
        cache = config.get_plan_cache()
        cache.clear()
        return ""

    def pool() -> str:
        cupy.get_default_memory_pool().free_all_blocks()
        held = pool_bytes(cupy)[0]
        return f"{bytes_text(held)} in use" if held else ""

    def pinned() -> str:
        cupy.get_default_pinned_memory_pool().free_all_blocks()
        return ""

    return [Step("CuPy's FFT plans", plans), Step("CuPy's pool", pool), Step("CuPy's pinned pool", pinned)]
