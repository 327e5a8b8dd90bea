"""TensorFlow: Keras' global state, and the statistics of the devices."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._frameworks.step import NotApplicable, Step

__all__ = ["loaded_tensorflow", "steps"]


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


def steps(tensorflow: Any) -> list[Step]:
    """What TensorFlow can give back. Its allocator keeps what it has taken until the process ends."""

    def session() -> str:
        # The attribute loads Keras when it is first asked for.
        keras = tensorflow.__dict__.get("keras") or sys.modules.get("keras")
        if keras is None:
            raise NotApplicable("Keras is not in use")
        keras.backend.clear_session()
        return "TensorFlow keeps the device memory itself until the process ends"

    def statistics() -> str:
        if not _initialized():
            raise NotApplicable("no device is in use")
        devices = [device.name for device in tensorflow.config.list_logical_devices("GPU")]
        if not devices:
            raise NotApplicable("no GPU is in use")
        for name in devices:
            tensorflow.config.experimental.reset_memory_stats(name.removeprefix("/device:"))
        return ""

    return [Step("Keras' session", session), Step("TensorFlow's statistics", statistics)]
