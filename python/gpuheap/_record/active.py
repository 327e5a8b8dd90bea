"""The recording that is under way: PyTorch keeps one history for the process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap.record import Recording

__all__ = ["active"]


class Active:
    """Which one it is, if any, and what belongs to the process and not to it."""

    def __init__(self) -> None:
        """None is."""
        self.recording: Recording | None = None
        self.observed = False
        self.marks = 0
        self._lock = threading.Lock()

    def claim(self, recording: Recording) -> None:
        """It is this one from now on. Raises if there is another."""
        with self._lock:
            other = self.recording
            if other is None:
                self.recording = recording
                self.marks = 0
        if other is not None:
            raise Error(
                f"Failed to record to `{recording.path}`\n  cause: a recording to `{other.path}` is under way",
                "PyTorch keeps one history: stop that one first",
            )

    def give_back(self, recording: Recording) -> None:
        """It is this one no more."""
        if self.recording is recording:
            self.recording = None

    def after_fork(self) -> None:
        """In a process that was forked off none is under way: it would write over that of its parent."""
        self._lock = threading.Lock()
        recording, self.recording = self.recording, None
        if recording is not None:
            recording._forked()


active = Active()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=active.after_fork)
