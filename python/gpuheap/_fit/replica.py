"""What `DistributedDataParallel` asks of memory, for one rank that is traced alone.

Its reducer works in C++ on gradients, where fake tensors cannot follow. This asks for the same, in the same order:
states are sent to all ranks in pieces, all gradients have one bucket at first and small ones, in the order in which
gradients come, from the second step on; each gradient is copied to its place in a bucket and is a view of it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuheap._fit.streams import Streams

__all__ = ["replica_over"]

# Of torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp.
_PIECE = 250 << 20
_FIRST = 1 << 20
_BUCKET = 25 << 20


def replica_over(streams: Streams) -> type:
    """The class that stands for `DistributedDataParallel`, exchanging on a stream of its own."""

    class Replica(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        """A model whose gradients are averaged over ranks."""

        def __init__(self, module: Any, process_group: Any = None, **_: Any) -> None:
            super().__init__()
            self.module = module
            self._group = process_group
            self._beside = streams.Stream()
            self._synchronises = True
            self._order: list[Any] | None = []
            with torch.no_grad():
                self._send()
            self._trained = [one for one in module.parameters() if one.requires_grad]
            self._make([list(reversed(self._trained))])
            for parameter in self._trained:
                parameter.register_post_accumulate_grad_hook(self._ready)

        def _send(self) -> None:
            """All ranks get the states of the first; two pieces are under way at a time."""
            import torch.distributed as dist

            under_way: list[Any] = []
            states = [one.detach() for one in (*self.module.parameters(), *self.module.buffers())]
            for piece in _pieces(states, [_PIECE]):
                flat = [one.contiguous().view(-1) for one in piece]
                whole = torch.cat(flat) if len(flat) > 1 else flat[0]
                dist.broadcast(whole, 0, group=self._group)
                under_way = [*under_way[-1:], whole]

        def _make(self, groups: list[list[Any]]) -> None:
            self._buckets: list[Any] = []
            self._place: dict[int, tuple[int, Any]] = {}
            self._open: list[int] = []
            for number, group in enumerate(groups):
                bucket = torch.empty(sum(one.numel() for one in group), dtype=group[0].dtype, device=group[0].device)
                start = 0
                for parameter in group:
                    view = bucket[start : start + parameter.numel()].view(parameter.shape)
                    self._place[id(parameter)] = (number, view)
                    start += parameter.numel()
                self._buckets.append(bucket)
            self._sizes = [len(group) for group in groups]
            self._left = list(self._sizes)

        def forward(self, *arguments: Any, **named: Any) -> Any:
            if self._order is not None and len(self._order) == len(self._trained) and torch.is_grad_enabled():
                order, self._order = self._order, None
                # The old one is gone before the new ones are made.
                self._buckets, self._place = [], {}
                self._make(_pieces(order, [_FIRST, _BUCKET]))
            return self.module(*arguments, **named)

        def _ready(self, parameter: Any) -> None:
            if not self._synchronises:
                return
            import torch.distributed as dist

            number, view = self._place[id(parameter)]
            if self._order is not None:
                self._order.append(parameter)
            with torch.no_grad():
                view.copy_(parameter.grad)
            parameter.grad = view
            self._left[number] -= 1
            if self._left[number]:
                return
            main = streams.current_stream()
            self._beside.wait_stream(main)
            with streams.on(self._beside):
                dist.all_reduce(self._buckets[number], group=self._group)
            if not any(self._left):
                main.wait_stream(self._beside)
                self._left = list(self._sizes)

        @contextmanager
        def no_sync(self) -> Iterator[None]:
            """Gradients stay on this rank."""
            before, self._synchronises = self._synchronises, False
            try:
                yield
            finally:
                self._synchronises = before

    return Replica


def _pieces(tensors: list[Any], limits: list[int]) -> list[list[Any]]:
    """Tensors of one type each, in order: a piece is closed as soon as it has as many bytes as the next limit says."""
    found: list[list[Any]] = []
    open_of: dict[Any, tuple[list[Any], int]] = {}
    used: dict[Any, int] = {}
    for tensor in tensors:
        piece, size = open_of.get(tensor.dtype, ([], 0))
        piece.append(tensor)
        size += tensor.numel() * tensor.element_size()
        limit = limits[min(used.get(tensor.dtype, 0), len(limits) - 1)]
        if size >= limit:
            found.append(piece)
            used[tensor.dtype] = used.get(tensor.dtype, 0) + 1
            piece, size = [], 0
        open_of[tensor.dtype] = (piece, size)
    found.extend(piece for piece, _ in open_of.values() if piece)
    return found
