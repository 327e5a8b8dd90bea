"""The command line of the tracer."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gpuheap._fit.errors import TraceError

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Trace a program and write the trace; 2 if that is not possible."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuheap._fit trace",
        description="Trace two training steps of a program as they would run on a GPU. None is needed.",
    )
    parser.add_argument("make", metavar="FILE:FUNCTION", help="a function that returns (model, optimizer, loss, batch)")
    parser.add_argument("--out", default="-", metavar="FILE", help="where the trace goes; '-' is standard output")
    parser.add_argument("--batch", type=int, metavar="N", help="samples in a batch; else as make() has it")
    parser.add_argument("--apply", metavar="FILE", help="levers to apply before the first step, as JSON")
    parser.add_argument("--phase", default="", metavar="LIST", help="also trace evaluation, generation, saving")
    parser.add_argument("--capability", default="9.0", metavar="X.Y", help="compute capability of the GPU")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except TraceError as error:
        # The program's own text, such as a progress bar, may not have ended its line.
        print(f"\nerror: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    from gpuheap._fit.load import load
    from gpuheap._fit.pretend import Gpu
    from gpuheap._fit.trace import trace
    from gpuheap._fit.write import write

    if options.batch is not None and options.batch < 1:
        raise TraceError(f"a batch of {options.batch} samples is none")
    levers = _levers(options.apply) if options.apply else []
    gpu = Gpu(capability=_capability(options.capability))
    phases = [phase for phase in options.phase.split(",") if phase]
    # What the program prints is not part of the trace.
    with redirect_stdout(sys.stderr):
        make = load(options.make)
        result = trace(
            make, batch=options.batch, levers=levers, phases=phases, source=options.make, gpu=gpu, progress=_say
        )
    write(result, options.out)


def _say(what: str) -> None:
    print(f"progress: {what}", file=sys.stderr, flush=True)


def _capability(text: str) -> tuple[int, int]:
    major, dot, minor = text.partition(".")
    if not major.isdigit() or (dot and not minor.isdigit()):
        raise TraceError(f"{text!r} is no compute capability; it is two numbers, such as 9.0")
    return int(major), int(minor or 0)


def _levers(path: str) -> list[dict[str, Any]]:
    try:
        read = json.loads(Path(path).read_text())
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TraceError(f"{path} is no JSON: {error}") from error
    # A plan has its levers under this name.
    found = read.get("plan") if isinstance(read, dict) else read
    if not isinstance(found, list) or not all(isinstance(one, dict) and "lever" in one for one in found):
        raise TraceError(f'{path} has no list of levers, such as [{{"lever": "checkpoint", "modules": [...]}}]')
    return found
