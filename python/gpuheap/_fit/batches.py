"""The example batch: its size, another size, its way to the device."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["describe", "is_maker", "leaves", "makes", "resized", "to_device"]


def is_maker(batch: Any) -> bool:
    """Whether this makes batches, and is none: a function of the batch size, an iterator, a data loader."""
    if hasattr(batch, "shape") or isinstance(batch, (Mapping, tuple, list)):
        return False
    return callable(batch) or isinstance(batch, Iterator) or _is_loader(batch)


def makes(function: Any) -> bool:
    """Whether a function can make batches, by what it wants: nothing, or one number that may be left out."""
    if inspect.isgeneratorfunction(function):
        return True
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    return len(parameters) <= 1 and all(one.default is not inspect.Parameter.empty for one in parameters)


def make(maker: Any, size: int | None) -> Any:
    """A batch of a size, or of the maker's own.

    Raises:
        TraceError: it makes none.
    """
    made = _loaded(maker) if _is_loader(maker) else maker if isinstance(maker, Iterator) else _called(maker, size)
    if isinstance(made, Iterator):
        try:
            made = next(made)
        except StopIteration as error:
            raise TraceError(
                "the batches of make() came to an end before two steps",
                "Let the generator go on, or give one batch.",
            ) from error
    if size is None or (callable(maker) and size_of(made) == size):
        return made
    return resized(made, size)


def _is_loader(batch: Any) -> bool:
    return hasattr(batch, "dataset") and hasattr(batch, "collate_fn") and hasattr(batch, "batch_size")


def _loaded(loader: Any) -> Any:
    """The first batch of a data loader, in its own order of samples, by no worker: here its tensors have no data.

    Raises:
        TraceError: it has none.
    """
    dataset, count = loader.dataset, loader.batch_size
    if not hasattr(dataset, "__getitem__"):
        made: Any = list(islice(iter(dataset), count or 1))
    else:
        if count is None:
            sampler = getattr(loader, "batch_sampler", None)
            # A sampler of batches may give any number; the first of them stands for all.
            count = len(next(iter(sampler))) if sampler is not None else 1
        made = [dataset[at] for at in range(min(count, len(dataset)))]
    if not made:
        raise TraceError("the data loader of make() gives no batch", "Give its dataset samples.")
    return loader.collate_fn(made)


def _called(maker: Callable[..., Any], size: int | None) -> Any:
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
        return mapped_entries(batch, lambda value: mapped(value, change))
    if hasattr(batch, "__dict__") and not callable(batch):
        for key, value in vars(batch).items():
            setattr(batch, key, mapped(value, change))
    return batch


def to_device(batch: Any) -> Any:
    """The batch on the GPU."""
    return mapped(batch, lambda tensor: tensor.detach().to("cuda").requires_grad_(tensor.requires_grad))


def as_tensors(batch: Any) -> Any:
    """The batch with arrays of NumPy as tensors of the same shapes and types, as programs make them before a step."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return batch
    import torch

    def change(one: Any) -> Any:
        if not isinstance(one, numpy.ndarray) or one.dtype.kind not in "biufc":
            return one
        name = str(one.dtype.name)
        return torch.empty(one.shape, dtype=getattr(torch, _TORCH.get(name, name)))

    if isinstance(batch, numpy.ndarray):
        return change(batch)
    if isinstance(batch, Mapping):
        return mapped_entries(batch, as_tensors)
    if isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields"):
        return type(batch)(as_tensors(one) for one in batch)
    return batch


_TORCH: dict[str, str] = {"bool_": "bool", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Types of NumPy that PyTorch calls something else, or computes with as another one."""


def mapped_entries(batch: Mapping[Any, Any], change: Callable[[Any], Any]) -> Any:
    """A mapping of the same kind, if that can be made, with all values changed."""
    entries = {key: change(value) for key, value in batch.items()}
    try:
        return type(batch)(entries)  # type: ignore[call-arg]
    except TypeError:
        return entries


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
