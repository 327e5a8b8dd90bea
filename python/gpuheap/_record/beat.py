"""The thread beside a recording: it paces the walks of the stack, asks the driver, and saves now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

__all__ = ["Beat"]

FIRST_SAVE = 60.0
"""Seconds until the first save."""

SAVE_SHARE = 1 / 300
"""The share of the time that saves may take."""

ASK = 1.0
"""Seconds between two questions to the driver."""


class Beat:
    """Runs until :meth:`end`.

    ``pace`` says in how many seconds it wants to be called again. Whatever one of the three raises is swallowed: a
    recording must not disturb the program.
    """

    def __init__(
        self,
        *,
        pace: Callable[[], float] | None,
        ask: Callable[[], None] | None,
        save: Callable[[], object] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each may be left out."""
        self._pace = pace
        self._ask = ask
        self._save = save
        self._clock = clock
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        now = clock()
        self._next_pace = now
        self._next_ask = now + ASK
        self._next_save = now + FIRST_SAVE

    def start(self) -> None:
        """Begin."""
        thread = threading.Thread(target=self._run, name="gpuheap-record", daemon=True)
        thread.start()
        self._thread = thread

    def end(self) -> None:
        """Stop, and wait for what is being done."""
        self._ended.set()
        thread, self._thread = self._thread, None
        # Ended from within: from a signal's handler in a save, or by the collector.
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def turn(self) -> float:
        """Do what is due; return the seconds until something is."""
        now = self._clock()
        if self._pace is not None and now >= self._next_pace:
            self._next_pace = now + _quietly(self._pace, 1.0)
        if self._ask is not None and now >= self._next_ask:
            _quietly(self._ask, None)
            self._next_ask = now + ASK
        if self._save is not None and now >= self._next_save:
            start = self._clock()
            _quietly(self._save, None)
            end = self._clock()
            self._next_save = end + max(FIRST_SAVE, (end - start) / SAVE_SHARE)
        due = [
            at
            for task, at in ((self._pace, self._next_pace), (self._ask, self._next_ask), (self._save, self._next_save))
            if task is not None
        ]
        return max(min(due) - self._clock(), 0.001) if due else FIRST_SAVE

    def _run(self) -> None:
        while not self._ended.wait(self.turn()):
            pass


def _quietly(task: Callable[[], float] | Callable[[], object] | Callable[[], None], otherwise: float | None) -> float:
    with contextlib.suppress(Exception):
        result = task()
        if isinstance(result, float):
            return result
    return otherwise or 0.0
