"""``python -m gpuheap demo``: what gpuheap does, on a recording that comes with it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gpuheap import _core
from gpuheap.errors import Error

_USAGE = """\
Show what gpuheap does, on a recording that comes with it: a training loop that keeps its losses.
Needs no GPU and no framework.

Usage: gpuheap demo [FOLDER]

Arguments:
  [FOLDER]  Where the recording and the page are written [default: a new temporary folder]
"""


def run(arguments: Sequence[str]) -> int:
    """Run the demonstration and return the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(_USAGE, end="")
        return 0
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(f"error: Unexpected argument `{arguments[-1]}`\n\n{_USAGE}", end="", file=sys.stderr)
        return 2
    try:
        folder = Path(arguments[0]) if arguments else Path(tempfile.mkdtemp(prefix="gpuheap-demo-"))
        folder.mkdir(parents=True, exist_ok=True)
        recording = folder / "leak.pickle.gz"
        recording.write_bytes(_core.demo())
        page = folder / "leak.html"
        print("A training loop that keeps its losses was recorded on a GPU. What its recording says:\n", flush=True)
        code = _core.main(["explain", str(recording)])
        if code == 0:
            _core.html(recording, page)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or (arguments[0] if arguments else tempfile.gettempdir())
        print(f"error: Failed to write to `{where}`\n  cause: {error.strerror or error}", file=sys.stderr)
        print("\nhint: name a folder that you may write to: `gpuheap demo FOLDER`", file=sys.stderr)
        return 2
    if code != 0:
        return code
    print(f"\nRecording  {recording}\nPage       {page}    open it in a browser")
    missing = _missing()
    if missing:
        print(f"\nNot shown: recording a program of your own. {missing}")
    return 0


def _missing() -> str | None:
    """Why nothing can be recorded here, if that is so. Imports no framework and touches no device."""
    has_gpu = any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
    has_torch = find_spec("torch") is not None
    if has_gpu and has_torch:
        return None
    if has_torch:
        return "This machine has no GPU that PyTorch could use"
    return "PyTorch is not installed" if has_gpu else "This machine has no GPU, and PyTorch is not installed"
