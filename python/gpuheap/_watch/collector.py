"""How much device memory Python's collector gives back: what tells garbage in cycles from a list that is cleared."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from gpuheap._watch.pace import Pace

__all__ = ["Collector"]

SHARE = 0.0002
"""The share of the time that looking at collections may take. Full collections are always looked at: they cost more."""

FULL = 2


class Collector:
    """Looks at the allocators before and after each collection. Begins with `start`, ends with `stop`."""

    def __init__(self, allocated: Callable[[], dict[str, int]]) -> None:
        """`allocated` tells the bytes of each device."""
        self._allocated = allocated
        self._before: dict[str, int] | None = None
        self._pace = Pace(SHARE)
        self._cost = 0.0
        self._pid = 0
        self.given_back: dict[str, int] = {}
        """Bytes so far, by device."""

    def start(self) -> None:
        """Begin."""
        self._pid = os.getpid()
        # A process that was forked off has its parent's.
        if self._seen not in gc.callbacks:
            gc.callbacks.append(self._seen)

    def stop(self) -> None:
        """End."""
        if self._seen in gc.callbacks:
            gc.callbacks.remove(self._seen)

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        if os.getpid() != self._pid:
            return
        try:
            if phase == "start":
                start = self._pace.clock()
                if info["generation"] < FULL and not self._pace.ready(start):
                    self._before = None
                    return
                self._before = self._allocated()
                self._cost = self._pace.clock() - start
            elif self._before is not None:
                before, self._before = self._before, None
                if info["collected"]:
                    for device, now in self._allocated().items():
                        freed = before.get(device, 0) - now
                        if freed > 0:
                            self.given_back[device] = self.given_back.get(device, 0) + freed
                self._pace.spent(2 * self._cost)
        except Exception:
            # In the middle of a collection nobody could be told.
            self._before = None
