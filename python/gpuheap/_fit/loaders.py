"""Data loaders of a program that is traced: samples are read in this process, into ordinary memory.

A program that makes its batch by `next(iter(loader))` has worker processes and pinned memory, as in training. Neither
is there for tensors without numbers: a worker would make them in a process that traces nothing, and to pin memory is
the driver's. What the batch is like does not depend on them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

__all__ = ["loading_here"]


@contextmanager
def loading_here() -> Iterator[None]:
    """Within, data loaders read their samples in this process and pin nothing."""
    own = DataLoader._get_iterator
    DataLoader._get_iterator = _here
    try:
        yield
    finally:
        DataLoader._get_iterator = own


def _here(loader: DataLoader[Any]) -> Any:
    alone = copy.copy(loader)
    alone.num_workers, alone.timeout, alone.prefetch_factor, alone.pin_memory = 0, 0, None, False
    return _SingleProcessDataLoaderIter(alone)
