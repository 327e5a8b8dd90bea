"""`python -m gpuheap._fit`: what the command `gpuheap fit` runs in the Python of the program."""

from __future__ import annotations

import sys
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
    print("usage: python -m gpuheap._fit {trace,verify} ...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
