"""`python -m gpuheap._fit`: what the command `gpuheap fit` runs in the Python of the program."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run a subcommand; its exit code."""
    if arguments[:1] == ["trace"]:
        from gpuheap._fit.command import main as trace

        return trace(arguments[1:])
    if arguments[:1] == ["verify"]:
        code: int = import_module("gpuheap._fit.verify").main(arguments[1:])
        return code
    if arguments[:1] == ["calibrate"]:
        from gpuheap._fit.calibrate import main as calibrate

        return calibrate(arguments[1:])
    if arguments[:1] == ["changes"]:
        from gpuheap._fit.changes import main as changes

        return changes(arguments[1:])
    print("usage: python -m gpuheap._fit {trace,verify,calibrate,changes} ...", file=sys.stderr)
    return 2


def _leave(code: int) -> None:
    """End at once: threads that the program has started would be waited for, and may never end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        # As a shell says it of a program that Ctrl-C has ended.
        print("\nerror: interrupted", file=sys.stderr)
        code = 130
    _leave(code)
