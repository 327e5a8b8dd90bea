"""TensorFlow: what its devices have handed out, and their statistics."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["allocated_bytes", "loaded_tensorflow", "steps"]


def loaded_tensorflow() -> Any | None:
    """The `tensorflow` module if the program has loaded it, else None."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow if tensorflow is not None and hasattr(tensorflow, "config") else None


def _initialized() -> bool:
    # Asking for the logical devices would start the runtime, which takes most of every GPU.
    eager = sys.modules.get("tensorflow.python.eager.context")
    if eager is None:
        return True
    context = eager.context_safe()
    return context is not None and bool(getattr(context, "_initialized", True))


def _gpus(tensorflow: Any) -> list[str]:
    """The GPUs on which TensorFlow runs, as its statistics call them: `GPU:0`."""
    if not _initialized():
        return []
    return [device.name.removeprefix("/device:") for device in tensorflow.config.list_logical_devices("GPU")]


def allocated_bytes(tensorflow: Any) -> int:
    """What TensorFlow has handed out on its GPUs. What it has taken from the driver it does not tell."""
    taken = 0
    for name in _gpus(tensorflow):
        # Not every allocator that can be chosen counts.
        with suppress(Exception):
            taken += int(tensorflow.config.experimental.get_memory_info(name)["current"])
    return taken


def steps(tensorflow: Any) -> list[Step]:
    """What TensorFlow can reset. Its allocator keeps what it has taken until the process ends."""

    def statistics() -> str:
        gpus = _gpus(tensorflow)
        if not gpus:
            raise NotApplicable("no GPU is in use")
        for name in gpus:
            tensorflow.config.experimental.reset_memory_stats(name)
        return "TensorFlow keeps the device memory itself until the process ends"

    return [Step("TensorFlow's statistics", statistics)]
