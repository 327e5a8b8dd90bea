"""Sparse gradients, as embeddings give them and `SparseAdam` uses them: rows of a table, and where they belong.

Fake tensors lose the rows: copies and sums of equal rows have none. Here they keep as many as there were, which is the
most that there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpuheap._fit.fake import FakeCuda

__all__ = ["SPARSE"]

_aten = torch.ops.aten


def _add(_mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """Rows are added to a tensor where they belong, without memory of its own."""
    into, rows = args[:2]
    is_sparse = isinstance(rows, torch.Tensor) and rows.layout is torch.sparse_coo
    return into if is_sparse and into.layout is torch.strided else NotImplemented


def _clone(mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """A sparse gradient, of which a copy of a fake tensor has no rows.

    What comes out of a backward pass is kept as it is on a device, without a copy: only fake tensors are held by more
    than the pass.
    """
    sparse = args[0]
    if sparse.layout is not torch.sparse_coo:
        return NotImplemented
    with torch._C._DisableTorchDispatch():
        indices, values = sparse._indices(), sparse._values()
    return _sparse(mode, sparse, indices, values, coalesced=sparse.is_coalesced())


def _coalesce(mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """Rows that occur once, where fake tensors have none: as many as there were, which is the most."""
    sparse = args[0]
    if sparse.layout is not torch.sparse_coo:
        return NotImplemented
    return _rows(mode, sparse, sparse.dtype)


def _sparse_mask(mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """Of a tensor the rows that another has."""
    dense, mask = args[:2]
    if dense.layout is not torch.strided or mask.layout is not torch.sparse_coo:
        return NotImplemented
    return _rows(mode, mask, dense.dtype)


def _rows(mode: FakeCuda, like: Any, dtype: Any) -> Any:
    with torch._C._DisableTorchDispatch():
        indices, values = like._indices(), like._values()
    with mode:
        indices, values = torch.empty_like(indices), torch.empty_like(values, dtype=dtype)
    return _sparse(mode, like, indices, values, coalesced=True)


def _sparse(mode: FakeCuda, like: Any, indices: Any, values: Any, *, coalesced: bool) -> Any:
    with mode:
        return _aten._sparse_coo_tensor_with_dims_and_tensors(
            like.sparse_dim(),
            like.dense_dim(),
            list(like.shape),
            indices,
            values,
            dtype=values.dtype,
            layout=torch.sparse_coo,
            device=like.device,
            is_coalesced=coalesced,
        )


SPARSE: Mapping[Any, Callable[[FakeCuda, Sequence[Any], Mapping[str, Any]], Any]] = {
    _aten.add_.Tensor: _add,
    _aten.clone.default: _clone,
    _aten._coalesce.default: _coalesce,
    _aten.sparse_mask.default: _sparse_mask,
}
"""What to do in place of operators if a tensor of theirs is sparse; `NotImplemented` leaves it to PyTorch."""
