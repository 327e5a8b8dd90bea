"""The example batch: its size, another size, its way to the device."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["describe", "is_maker", "leaves", "resized", "to_device"]


def is_maker(batch: Any) -> bool:
    """Whether this is a function of the batch size that makes batches, and not a batch."""
    return callable(batch) and not hasattr(batch, "shape") and not isinstance(batch, (Mapping, tuple, list))


def make(maker: Callable[..., Any], size: int | None) -> Any:
    """A batch of a size, or of the maker's own."""
    parameters: Mapping[str, inspect.Parameter] | None
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):
        parameters = None
    if parameters is not None and not parameters:
        return maker()
    if size is not None:
        return maker(size)
    needed = parameters is not None and all(one.default is inspect.Parameter.empty for one in parameters.values())
    if needed:
        raise TraceError(
            "the batch of make() is a function of the batch size, and no size was given",
            "Give one, as `--batch 64` or `batch=64`, or give the parameter a default.",
        )
    return maker()


def leaves(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor of a batch, with its name within it."""
    if hasattr(batch, "shape") and hasattr(batch, "untyped_storage"):
        yield name or "batch", batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(batch, (tuple, list)):
        for at, value in enumerate(batch):
            yield from leaves(value, f"{name}.{at}" if name else str(at))
    elif hasattr(batch, "__dict__") and not callable(batch):
        # Data classes and their like.
        for key, value in vars(batch).items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with every tensor changed."""
    if hasattr(batch, "shape") and hasattr(batch, "untyped_storage"):
        return change(batch)
    if isinstance(batch, tuple):
        parts = [mapped(one, change) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [mapped(one, change) for one in batch]
    if isinstance(batch, Mapping):
        parts_by_name = {key: mapped(value, change) for key, value in batch.items()}
        try:
            return type(batch)(parts_by_name)  # type: ignore[call-arg]
        except TypeError:
            return parts_by_name
    if hasattr(batch, "__dict__") and not callable(batch):
        for key, value in vars(batch).items():
            setattr(batch, key, mapped(value, change))
    return batch


def to_device(batch: Any) -> Any:
    """The batch on the GPU."""
    return mapped(batch, lambda tensor: tensor.detach().to("cuda").requires_grad_(tensor.requires_grad))


def size_of(batch: Any) -> int:
    """How many samples: the first size that most of its tensors share, or the length of its lists of samples."""
    samples = _lists(batch)
    if samples:
        return len(samples[0])
    found = Counter(int(tensor.shape[0]) for _, tensor in leaves(batch) if tensor.dim())
    return found.most_common(1)[0][0] if found else 1


def _lists(batch: Any) -> list[list[Any]]:
    """The lists that have one entry for each sample, as detection models take pictures and their boxes; else none."""
    if isinstance(batch, (tuple, list)):
        return [one for one in batch if isinstance(one, list)] if batch and isinstance(batch[0], list) else []
    if not isinstance(batch, Mapping):
        return []
    found = [one for one in batch.values() if isinstance(one, list) and one]
    # A list of tensors alone may be one of fields.
    of_objects = any(isinstance(one[0], Mapping) for one in found)
    return found if of_objects and len({len(one) for one in found}) == 1 else []


def resized(batch: Any, size: int) -> Any:
    """The batch with another number of samples: every first dimension that is its size.

    Raises:
        TraceError: nothing in it has this dimension.
    """
    import torch

    before = size_of(batch)
    if before == size:
        return batch
    changed = 0

    def change(tensor: Any) -> Any:
        nonlocal changed
        if tensor.dim() and tensor.shape[0] == before:
            changed += 1
            shape = (size, *tensor.shape[1:])
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device).requires_grad_(tensor.requires_grad)
        return tensor

    lists = {id(one) for one in _lists(batch)}
    if lists:
        # Samples can differ in size: the first ones, and over again.
        def other(one: Any) -> Any:
            return [one[at % len(one)] for at in range(size)] if id(one) in lists else one

        if isinstance(batch, Mapping):
            return {key: other(value) for key, value in batch.items()}
        parts = [other(one) for one in batch]
        return tuple(parts) if isinstance(batch, tuple) else parts
    made = mapped(batch, change)
    if not changed:
        raise TraceError("no tensor of the batch has the batch size as its first dimension")
    return made


def describe(batch: Any) -> dict[str, Any]:
    """As in the trace."""
    rows: list[dict[str, Any]] = [
        {"name": name, "shape": [int(n) for n in tensor.shape], "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in leaves(batch)
    ]
    size = size_of(batch)
    dims: dict[str, int] = {}
    for row in rows:
        shape, whole = row["shape"], row["dtype"].startswith(("int", "bool"))
        if whole and len(shape) == 2 and shape[0] == size:
            dims["sequence"] = max(dims.get("sequence", 0), shape[1])
    return {"size": size, "dims": dims, "leaves": rows}
