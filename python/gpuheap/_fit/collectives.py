"""Exchanges between ranks, of which only one is there: what they make here, and how many bytes cross a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["intercept", "is_exchange", "wire_bytes"]

_NAMESPACES = ("c10d", "_c10d_functional")


def is_exchange(func: Any) -> bool:
    """Whether an operator exchanges something between ranks."""
    return getattr(func, "namespace", "") in _NAMESPACES


def intercept(_mode: Any, func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
    """The result of an exchange that works in place: its first argument, and work that is done."""
    if getattr(func, "namespace", "") != "c10d":
        return NotImplemented
    from torch._C._distributed_c10d import FakeWork

    returns = func._schema.returns
    if not returns:
        return None
    work = FakeWork().boxed()
    return work if len(returns) == 1 else (args[0], work)


def wire_bytes(func: Any, args: Sequence[Any], tensors: Sequence[Any], out: Any) -> tuple[int, int, int]:
    """As the cost of an operator: no arithmetic, bytes that a rank sends and that it receives, as rings do it."""
    name = func._schema.name.rpartition("::")[2].strip("_")
    ranks = _ranks(args)
    given, made = _sizes(args[:1]), _sizes([out] if isinstance(out, torch.Tensor) else args[1:2])
    most = max(given, made)
    if name == "wait_tensor" or ranks < 2:
        return 0, 0, 0
    if name.startswith(("allreduce", "all_reduce")):
        both = 2 * given * (ranks - 1) // ranks
        return 0, both, both
    if name.startswith("send"):
        return 0, given, 0
    if name.startswith("recv"):
        return 0, 0, given
    if name.startswith("broadcast"):
        return 0, given, given
    if name.startswith(("allgather", "all_gather", "reduce_scatter", "scatter", "gather", "alltoall", "all_to_all")):
        part = most * (ranks - 1) // ranks
        return 0, part, part
    return 0, _sizes(tensors), 0


def _sizes(values: Any) -> int:
    leaves = pytree.tree_leaves(list(values))
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _ranks(args: Sequence[Any]) -> int:
    """The ranks of the group among an operator's arguments: one of this process, by itself or by its name."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group

    for one in args:
        if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type()):
            return int(ProcessGroup.unbox(one).size())
        if isinstance(one, str):
            try:
                return int(_resolve_process_group(one).size())
            except (RuntimeError, ValueError):
                # The name of a way to add up.
                continue
    return int(dist.get_world_size())
