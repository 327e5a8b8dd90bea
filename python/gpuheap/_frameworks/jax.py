"""JAX: compiled functions, and on request the buffers themselves."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["loaded_jax", "steps"]


def loaded_jax() -> Any | None:
    """The `jax` module if the program has loaded it to the end, else None."""
    jax = sys.modules.get("jax")
    return jax if jax is not None and hasattr(jax, "clear_caches") else None


def steps(jax: Any, *, buffers: bool) -> list[Step]:
    """What JAX can give back. With `buffers` every live array is deleted: the program cannot use one afterwards."""

    def caches() -> str:
        jax.clear_caches()
        return "functions compile again when they are called again"

    def arrays() -> str:
        live = list(jax.live_arrays())
        if not live:
            raise NotApplicable("no live arrays")
        taken = 0
        for array in live:
            if not array.is_deleted():
                taken += int(array.nbytes)
                array.delete()
        return f"{len(live)} arrays, {bytes_text(taken)}"

    made = [Step("JAX's compiled functions", caches)]
    return [Step("JAX's live arrays", arrays), *made] if buffers else made
