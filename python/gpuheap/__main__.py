"""The command: ``gpuheap`` and ``python -m gpuheap``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence

# What only the Python package can do.
_OWN = {
    "record": "Record what a program does with GPU memory, without a change to it",
    "demo": "Show what gpuheap does, on a recording that comes with it; needs no GPU",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments [default: those of the program] and return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] in _OWN:
        return _own(arguments[0])(arguments[1:])
    from gpuheap import _core

    # Ctrl-C ends the command at once, as it does without Python.
    handler = signal.getsignal(signal.SIGINT)
    is_default = handler is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = _core.main(arguments)
    finally:
        if is_default:
            signal.signal(signal.SIGINT, handler)
    if arguments in (["--help"], ["-h"], ["help"]):
        print("\nIn the Python package also:")
        for name, text in _OWN.items():
            print(f"  {name:<12} {text}")
    return code


def _own(name: str) -> Callable[[Sequence[str]], int]:
    if name == "record":
        from gpuheap import recorded

        return recorded.run
    from gpuheap import demo

    return demo.run


if __name__ == "__main__":
    sys.exit(main())
