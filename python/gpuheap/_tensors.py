"""Tensors that are alive, and the memory behind them. PyTorch is used if the program has loaded it, never loaded."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from gpuheap._objects import mro

__all__ = [
    "Storage",
    "gradient_of",
    "in_graph",
    "live_tensors",
    "loaded_torch",
    "needed_bytes",
    "plain",
    "storages_of",
    "tensor_text",
]


def loaded_torch() -> Any | None:
    """The `torch` module if the program has loaded it (to the end), else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "Tensor") and hasattr(torch, "_C") else None


@dataclass(frozen=True)
class Storage:
    """One piece of memory behind one or more tensors."""

    key: int
    """What tells storages apart while they live; no address."""
    address: int
    """Where its memory begins."""
    bytes: int
    """How much memory it holds; 0 for a tensor that has shapes only (device `meta`)."""
    device: str
    """As PyTorch writes it: `cpu`, `cuda:0`."""


def plain(torch: Any) -> AbstractContextManager[Any]:
    """Tensor methods inside do what PyTorch does, also for subclasses that override them (`__torch_function__`)."""
    guard = getattr(torch._C, "DisableTorchFunctionSubclass", None)
    return guard() if guard is not None else nullcontext()


def live_tensors(torch: Any, objects: Iterable[Any] | None = None) -> list[Any]:
    """All tensors that Python knows of, subclasses, parameters and gradients included.

    Args:
        torch: the module, from `loaded_torch`.
        objects: where to look; by default everything that the garbage collector tracks.
    """
    everything = gc.get_objects() if objects is None else objects
    # Types first: a heap has millions of objects but few types, and no object is asked anything.
    everything = everything if isinstance(everything, list) else list(everything)
    kinds = {kind for kind in set(map(type, everything)) if torch.Tensor in mro(kind)}
    tensors = [value for value in everything if type(value) in kinds]
    # A gradient has no Python object before someone asks for it.
    known = {id(tensor) for tensor in tensors}
    gradients = []
    with plain(torch):
        for tensor in tensors:
            gradient = gradient_of(tensor)
            if gradient is not None and id(gradient) not in known:
                known.add(id(gradient))
                gradients.append(gradient)
    return tensors + gradients


def gradient_of(tensor: Any) -> Any | None:
    """The gradient of a tensor that can have one. Asking any other tensor inside a graph would warn."""
    try:
        return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    except Exception:  # a subclass in the middle of its construction, say
        return None


def in_graph(tensor: Any) -> bool:
    """Whether a tensor is the result of operations that autograd has recorded."""
    try:
        return tensor.grad_fn is not None
    except Exception:
        return False


def _storage(torch: Any, untyped: Any) -> Storage:
    device = str(untyped.device)
    address = 0 if device == "meta" else int(untyped.data_ptr())
    return Storage(int(untyped._cdata), address, 0 if device == "meta" else int(untyped.nbytes()), device)


def storages_of(torch: Any, tensor: Any) -> tuple[Storage, ...]:
    """The storages behind a tensor: one as a rule, several if it is sparse, none if it has none that can be reached."""
    try:
        with plain(torch):
            layout = tensor.layout
            if layout is torch.strided:
                return (_storage(torch, tensor.untyped_storage()),)
            if layout is torch.sparse_coo:
                parts: tuple[Any, ...] = (tensor._indices(), tensor._values())
            elif layout in (torch.sparse_csr, torch.sparse_bsr):
                parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            elif layout in (torch.sparse_csc, torch.sparse_bsc):
                parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
            else:
                return ()
            return tuple(_storage(torch, part.untyped_storage()) for part in parts)
    except Exception:  # wrappers, fakes and functional tensors have no memory of their own
        return ()


def storage_of_untyped(torch: Any, untyped: Any) -> Storage | None:
    """What `storages_of` tells, of a `torch.UntypedStorage`."""
    try:
        return _storage(torch, untyped)
    except Exception:
        return None


def needed_bytes(torch: Any, tensor: Any) -> int:
    """How many bytes a tensor's own elements take, each counted once however often the view repeats it."""
    try:
        with plain(torch):
            if tensor.layout is not torch.strided:
                return sum(storage.bytes for storage in storages_of(torch, tensor))
            elements = 1
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                # An expanded dimension (stride 0) repeats the same elements.
                elements *= int(size) if stride != 0 else min(int(size), 1)
            return elements * int(tensor.element_size())
    except Exception:
        return 0


def tensor_text(torch: Any, tensor: Any) -> str:
    """`Tensor[256, 1024] float32 on cuda:0`."""
    try:
        with plain(torch):
            sizes = ", ".join(str(size) for size in tensor.shape)
            return f"{type(tensor).__name__}[{sizes}] {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
    except Exception:
        return "a tensor"
