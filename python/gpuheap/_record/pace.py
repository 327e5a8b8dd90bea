"""When PyTorch walks the stack of the program: always where that costs little, else in short stretches.

A walk takes one to three microseconds. That is nothing beside a training step, and a seventh of the time of a loop that
only launches small kernels, with tens of thousands of allocations a second. There the walks are turned off and on many
times a second. What the stacks were in the gaps is told from the same sequence of allocations elsewhere in the
recording, see `crates/gpuheap-explain/src/gaps.rs`.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["SHARE", "Pace", "allocations", "is_possible", "walk_seconds"]

SHARE = 0.03
"""The share of the program's time that walks may take."""

OF_SHARE = 1 / 3
"""The part of that share which walks in stretches take: where they are needed, the history costs twice as much
beside them."""

WHOLE = 50_000
"""The first allocations have their stacks whatever that costs, a tenth of a second in all: the stretches after them are
told from these, too, and most programs that someone makes to find a leak have no more."""

PERIOD = 0.2
"""Seconds from the beginning of one stretch to the next, at least."""

LONGEST = 2.0
"""The same, at most."""

STRETCH = 0.01
"""Seconds of a stretch, at least: it has to hold what comes before and after an allocation."""

MOST_GAPS = 100_000
"""Gaps that are kept: those of five hours at least. The history does not reach back as far, where there are any."""

UNKNOWN_WALK = 2.5e-6
"""Seconds of a walk where it cannot be measured."""


class Pace:
    """Decides, from how many allocations there were, whether stacks are to be walked, and until when.

    ``turn`` is called with True or False when that changes. ``gaps`` are the times without walks, in microseconds of
    Unix time. Called from one thread.
    """

    def __init__(self, turn: Callable[[bool], None], walk: float, share: float = SHARE) -> None:
        """``walk`` is what one walk takes, in seconds; ``share`` 1 or more walks always."""
        self._turn = turn
        self._walk = walk
        self._share = share
        self._on = True
        self._off_since = 0
        self._seen: tuple[float, int] | None = None
        self._first: int | None = None
        self.gaps: list[tuple[int, int]] = []

    def next(self, now: float, allocated: int) -> float:
        """What to do at time ``now`` (seconds of any clock) with ``allocated`` allocations so far.

        Returns in how many seconds to ask again.
        """
        seen, self._seen = self._seen, (now, allocated)
        if self._first is None:
            self._first = allocated
        if seen is None or now <= seen[0]:
            return STRETCH
        if allocated - self._first < WHOLE:
            return PERIOD / 2
        cost = max(allocated - seen[1], 0) / (now - seen[0]) * self._walk
        if cost <= self._share:
            self._set(True)
            return PERIOD / 2
        if not self._on:
            # The time without walks is over.
            self._set(True)
            return self._stretch(cost)[0]
        self._set(False)
        return self._stretch(cost)[1]

    def _stretch(self, cost: float) -> tuple[float, float]:
        """Seconds with and without walks, at this cost of walking always."""
        part = self._share * OF_SHARE / cost
        period = min(max(PERIOD, STRETCH / part), LONGEST)
        on = max(period * part, STRETCH / 2)
        return on, max(period - on, 0.0)

    def all_gaps(self) -> list[tuple[int, int]]:
        """The gaps so far, one that is still open included."""
        return [*self.gaps, *([] if self._on else [(self._off_since, _unix_us())])]

    def _set(self, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        if on:
            self._turn(True)
            self.gaps.append((self._off_since, _unix_us()))
            if len(self.gaps) > MOST_GAPS:
                del self.gaps[: MOST_GAPS // 2]
        else:
            self._off_since = _unix_us()
            self._turn(False)


def _unix_us() -> int:
    return time.time_ns() // 1000


def is_possible(torch: Any) -> bool:
    """Whether walks can be turned off and on while the history goes on: earlier versions of PyTorch, which could not be
    told to clear it, cleared it always."""
    try:
        parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    except (TypeError, ValueError):
        return False
    return "clear_history" in parameters


def allocations(torch: Any, devices: range) -> int:
    """How many blocks PyTorch has given out so far. Some ten microseconds a device."""
    total = 0
    for device in devices:
        stats = torch._C._cuda_memoryStats(device)
        total += int(stats["allocation"]["all"]["allocated"])
    return total


def walk_seconds(torch: Any) -> float:
    """What a walk of a stack takes that is as deep as the deepest of the threads now."""
    gather = getattr(getattr(torch._C, "_profiler", None), "gather_traceback", None)
    if gather is None:
        return UNKNOWN_WALK
    depth = 20
    for thread, frame in list(sys._current_frames().items()):
        if thread == threading.get_ident():
            continue
        here, at = 0, frame
        while at is not None and here < 200:
            here, at = here + 1, at.f_back  # type: ignore[assignment]
        depth = max(depth, here)
    try:
        return max(_measured(gather, depth), 0.5e-6)
    except Exception:
        # Such as a walk that this PyTorch cannot do here, or a stack that is too deep for it.
        return UNKNOWN_WALK


def _measured(gather: Callable[..., object], depth: int) -> float:
    """The median of some walks at this depth, in seconds."""

    def down(levels: int) -> None:
        # Frames that are new to the walk, as those of a program mostly are.
        if levels:
            down(levels - 1)
        else:
            gather(python=True, script=False, cpp=False)

    def empty(levels: int) -> None:
        if levels:
            empty(levels - 1)

    spent = []
    for _ in range(20):
        start = time.perf_counter()
        down(depth)
        middle = time.perf_counter()
        empty(depth)
        spent.append(2 * middle - start - time.perf_counter())
    return sorted(spent)[len(spent) // 2]
