"""How often something may be done that takes time: its own cost says."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """Lets something be done so often that it takes at most a share of the time, whatever it costs on this machine."""

    __slots__ = ("_due", "clock", "cost", "share")

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """`share` of the time, from 0 to 1."""
        self.share = share
        self.clock = clock
        self.cost = 0.0
        """Seconds that it took the last time."""
        self._due = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether it may be done at `now`."""
        return now >= self._due

    def spent(self, seconds: float) -> None:
        """It was done, and took so long until now."""
        self.cost = seconds
        self._due = self.clock() + seconds / self.share
