"""Arrays of other frameworks than PyTorch: what they are and the memory behind them. None of these is loaded here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuheap._objects import class_module, class_name

__all__ = ["Array", "array_of"]


@dataclass(frozen=True, slots=True)
class Array:
    """What can be said about an array."""

    text: str
    """`Array[256, 1024] float32 on cuda:0`"""
    bytes: int
    """How much memory it keeps alive."""
    needed_bytes: int
    """What its own elements take: less if it is a view of a larger array."""


def array_of(value: Any) -> Array | None:
    """What an array of JAX, TensorFlow, NumPy or CuPy is; None for everything else, and where it does not tell.

    Types are told by their names: no other object is asked for anything.
    """
    kind = type(value)
    read = _READERS.get((class_module(kind).partition(".")[0], class_name(kind)))
    try:
        return None if read is None else read(value)
    except Exception:  # deleted meanwhile, say
        return None


def _text(kind: str, shape: Any, dtype: str, place: str) -> str:
    return f"{kind}[{', '.join(str(int(size)) for size in shape)}] {dtype}{place}"


def _jax(value: Any) -> Array:
    deleted = bool(value.is_deleted())
    places = [] if deleted else sorted(map(str, value.devices()))
    place = ", deleted" if deleted else f" on {places[0] if len(places) == 1 else f'{len(places)} devices'}"
    taken = 0 if deleted else int(value.nbytes)
    return Array(_text("Array", value.shape, str(value.dtype), place), taken, taken)


def _tensorflow(value: Any) -> Array:
    elements = 1
    for size in value.shape:
        elements *= int(size)
    # `/job:localhost/replica:0/task:0/device:GPU:0`
    place = f" on {str(value.device).rpartition('device:')[2]}"
    taken = elements * int(value.dtype.size)
    return Array(_text("Tensor", value.shape, value.dtype.name, place), taken, taken)


def _numpy(value: Any) -> Array:
    whole = value
    while type(whole.base) is type(value):
        whole = whole.base
    # `cpu`, and `<CUDA Device 0>` of CuPy; NumPy has it since 2.0.
    place = str(getattr(value, "device", "cpu")).strip("<>").replace("CUDA Device ", "cuda:")
    return Array(_text("ndarray", value.shape, str(value.dtype), f" on {place}"), int(whole.nbytes), int(value.nbytes))


_READERS: dict[tuple[str, str], Callable[[Any], Array]] = {
    ("jaxlib", "ArrayImpl"): _jax,
    ("jax", "ArrayImpl"): _jax,
    ("tensorflow", "EagerTensor"): _tensorflow,
    ("numpy", "ndarray"): _numpy,
    ("cupy", "ndarray"): _numpy,
}
