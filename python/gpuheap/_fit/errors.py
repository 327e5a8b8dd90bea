"""What goes wrong in tracing, in words for the person who wrote the program."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from gpuheap.errors import Error

__all__ = ["TraceError", "place_of", "said"]

_OWN = str(Path(__file__).parent)

_MOST = 1000
"""The most characters that are repeated of what an error says."""


class TraceError(Error):
    """A program cannot be traced; the message says what failed, where, and what to do."""


def place_of(trace: TracebackType | None, file: str | None = None) -> str:
    """The line of the person's own code that an error came through, as ``train.py:12 in make: model = ...``.

    That is the last frame in ``file``, if given and on the stack, else the last frame outside of this package, of torch
    and of installed libraries; empty if there is none.
    """
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if file is not None and frame.filename == file]
    if not own:
        own = [frame for frame in frames if not _is_library(frame.filename)]
    if not own:
        return ""
    frame = own[-1]
    line = f": {frame.line}" if frame.line else ""
    return f"{frame.filename}:{frame.lineno} in {frame.name}{line}"


def _is_library(file: str) -> bool:
    return (
        file.startswith((_OWN, "<"))
        or "/site-packages/" in file
        or "/dist-packages/" in file
        or f"/lib/python{_version()}/" in file
    )


def _version() -> str:
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


def said(error: BaseException) -> str:
    """The type of an error of the program's, and the first line of what it says, of no more than some lines' length."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:
        # Its type has to do.
        lines = []
    name = type(error).__name__
    if not lines:
        return name
    first = lines[0] if len(lines[0]) <= _MOST else f"{lines[0][:_MOST]} …"
    return f"{name}: {first}"
