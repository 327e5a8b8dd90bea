"""Health as JSON lines: one object a line, appended as a whole."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from gpuheap._watch.health import Health
from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap._watch.sinks import Place

__all__ = ["JsonLines"]


class JsonLines:
    """Appends to a file. Several processes may write to the same one: a line is one write."""

    def __init__(self, path: str) -> None:
        """Opens it, so that a path that cannot be written to is told at once."""
        # The program may change its folder.
        self._path = os.path.abspath(path)
        try:
            self._append(b"")
        except OSError as error:
            hint = "make the folder first" if isinstance(error, FileNotFoundError) else None
            raise Error(f"Failed to write `{path}`\n  cause: {error.strerror}", hint) from error

    def write(self, health: Health, place: Place) -> None:
        """Append one line."""
        row = {"time": time.time(), "rank": place.rank, "pid": os.getpid(), **health.as_dict()}
        self._append(json.dumps(row).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        # Opened each time: cheap beside a hundred steps, and right after a fork and when the file was moved away.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            if line:
                os.write(file, line)
        finally:
            os.close(file)
