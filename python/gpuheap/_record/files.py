"""Where recordings go: whether they can, and how."""

from __future__ import annotations

import contextlib
import os

from gpuheap.errors import Error

__all__ = ["replace", "writable"]


def writable(path: str) -> None:
    """Raise if a file cannot be made or replaced there: better now than after hours of training."""
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise Error(f"Failed to write `{path}`\n  cause: it is a folder", "give a file in it")
    if not os.path.isdir(folder):
        raise Error(f"Failed to write `{path}`\n  cause: there is no folder `{folder}`", "make the folder first")
    if not os.access(folder, os.W_OK):
        raise Error(f"Failed to write `{path}`\n  cause: files cannot be made in `{folder}`")


def replace(path: str, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise Error(f"Failed to write `{path}`\n  cause: {error.strerror}") from error
