"""One rank of several, alone: a process group without processes, and PyTorch's engines over it.

FSDP2 and pipelines run as they are. Two engines cannot run over fake tensors, and something that asks for the same
memory in the same order is in their place: `DistributedDataParallel`, which works on gradients in C++ where no fake
tensor can follow (:mod:`gpuheap._fit.replica`), and `parallelize_module`, whose tensors tell the autograd engine of a
device that is not there (:mod:`gpuheap._fit.halves`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpuheap._fit.errors import TraceError
from gpuheap._fit.streams import Streams

__all__ = ["Handed", "alone", "shard_of"]


def shard_of(levers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The lever that spreads a program over ranks, if there is one."""
    return next((lever for lever in levers if lever.get("lever") == "shard"), None)


class Handed:
    """What ranks tell each other as objects: what a rank sends is there for the ranks that are traced after it."""

    def __init__(self) -> None:
        """Nothing was sent."""
        self._sent: list[Any] = []

    def send(self, objects: Sequence[Any], *_: Any, **__: Any) -> None:
        """As `torch.distributed.send_object_list`."""
        self._sent = list(objects)

    def receive(self, objects: list[Any], *_: Any, **__: Any) -> None:
        """As `torch.distributed.recv_object_list`."""
        if not self._sent:
            raise TraceError("this rank waits for what a rank before it sends: trace that first")
        objects[:] = self._sent[: len(objects)]


@contextmanager
def alone(ranks: int, rank: int, streams: Streams, handed: Handed) -> Iterator[None]:
    """Be one of so many ranks, with no others there.

    Raises:
        TraceError: this PyTorch has no `torch.distributed`, or the program has ranks of its own.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise TraceError("several GPUs need `torch.distributed`, which this PyTorch was built without")
    if dist.is_initialized():
        raise TraceError(
            "the program calls `torch.distributed.init_process_group()` itself, and cannot be traced as one of several",
            "Leave that to the line that `plan.torchrun()` gives, or call it outside of make().",
        )
    from torch.distributed.tensor import parallel

    # It registers the process group that PyTorch's own tests of single ranks use.
    from torch.testing._internal.distributed import fake_pg

    from gpuheap._fit.halves import parallelize
    from gpuheap._fit.replica import replica_over

    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=ranks)
    changed = [
        (dist, "send_object_list", handed.send),
        (dist, "recv_object_list", handed.receive),
        (torch.nn.parallel, "DistributedDataParallel", replica_over(streams)),
        (parallel, "parallelize_module", parallelize),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in changed]
    for place, name, value in changed:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        dist.destroy_process_group()
