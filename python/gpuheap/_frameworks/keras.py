"""Keras, of TensorFlow or on its own: the global state of its models."""

from __future__ import annotations

import sys
from typing import Any

from gpuheap._frameworks.step import Step

__all__ = ["loaded_keras", "steps"]


def loaded_keras() -> list[Any]:
    """The modules of Keras that the program has loaded: `keras`, and `tf_keras`, which is Keras 2."""
    found = [sys.modules.get(name) for name in ("keras", "tf_keras")]
    return [keras for keras in found if hasattr(getattr(keras, "backend", None), "clear_session")]


def steps() -> list[Step]:
    """Graphs, functions and names that Keras keeps of models, also after the program has dropped these."""

    def session() -> str:
        for keras in loaded_keras():
            keras.backend.clear_session()
        return "models that the program holds stay"

    return [Step("Keras' session", session)] if loaded_keras() else []
