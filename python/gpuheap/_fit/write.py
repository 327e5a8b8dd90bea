"""A trace as a file: one JSON object, written beside and renamed."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["encoded", "write"]


def encoded(trace: Mapping[str, Any]) -> bytes:
    """The trace as JSON."""
    return json.dumps(trace, separators=(",", ":")).encode()


def write(trace: Mapping[str, Any], path: str) -> None:
    """Write a trace to a file; a name that ends with `.gz` is compressed, `-` is standard output.

    Raises:
        TraceError: it cannot be written.
    """
    data = encoded(trace)
    if path == "-":
        import sys

        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()
        return
    if path.endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    target = Path(path)
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(beside, 0o644)
        os.replace(beside, target)
    except OSError as error:
        if beside:
            Path(beside).unlink(missing_ok=True)
        raise TraceError(f"{path} cannot be written: {error.strerror or error}") from error
