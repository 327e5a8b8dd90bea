"""``python -m gpuheap record train.py``, and ``GPUHEAP_RECORD``: a recording of a program that knows nothing of it."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gpuheap.errors import Error
from gpuheap.record import Recording

__all__ = ["at_start", "run"]

VARIABLE = "GPUHEAP_RECORD"

_USAGE = """\
Record what a program does with GPU memory, without a change to it

Usage: python -m gpuheap record [OPTIONS] SCRIPT [ARGUMENTS]...
       python -m gpuheap record [OPTIONS] -m MODULE [ARGUMENTS]...

Options:
  -o, --output PATH    Where the recording goes [default: gpuheap-PID.gpuheap]
      --snapshot PATH  Keep PyTorch's own snapshot, pickled, too
      --stacks WHICH   `python`, or `all` with native frames, which takes longer [default: python]
      --every-stack    Walk the stack at every allocation, however long that takes
      --activations    Name what each module's forward pass made
      --max-entries N  The most events that are kept [default: 1000000]
  -h, --help           Print help

Examples:
  python -m gpuheap record train.py --epochs 1
  python -m gpuheap record -o run.gpuheap -m torch.distributed.run --nproc-per-node 1 train.py
  GPUHEAP_RECORD=run.gpuheap python train.py      the same from outside

The exit code is the program's.
"""


def run(arguments: Sequence[str]) -> int:
    """Run a program and record it; return its exit code."""
    try:
        options, is_module, rest = _parse(list(arguments))
    except Error as error:
        print(f"error: {error}\n\n{_USAGE}", end="", file=sys.stderr)
        return 2
    if options is None:
        print(_USAGE, end="")
        return 0
    name = rest[0]
    sys.argv = rest
    try:
        recording = _when_torch_comes(Recording(**options))
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(name)))
    try:
        with recording:
            if is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
    finally:
        if "torch" not in sys.modules and recording._pid == os.getpid():
            print("gpuheap: nothing was recorded: the program did not import PyTorch", file=sys.stderr)
    return 0


def at_start() -> None:
    """Record this process if ``GPUHEAP_RECORD`` names a file: called when Python starts."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # A child writes beside its parent's recording, not over it.
    if os.environ.setdefault("_GPUHEAP_RECORD_OF", str(os.getpid())) != str(os.getpid()):
        path = _of_child(path)
    recording = _when_torch_comes(Recording(path))
    recording.__enter__()
    atexit.register(recording.__exit__, None, None, None)


def _of_child(path: str) -> str:
    stem, extension = os.path.splitext(path)
    return f"{stem}-{os.getpid()}{extension}"


def _parse(arguments: list[str]) -> tuple[dict[str, Any] | None, bool, list[str]]:
    names = {
        "-o": "path",
        "--output": "path",
        "--snapshot": "snapshot",
        "--stacks": "stacks",
        "--max-entries": "max_entries",
    }
    flags: dict[str, tuple[str, Any]] = {"--every-stack": ("stack_share", 1.0), "--activations": ("activations", True)}
    options: dict[str, Any] = {}
    while arguments:
        option, equals, value = arguments[0].partition("=")
        if option in ("-h", "--help"):
            return None, False, []
        if arguments[0] == "-m":
            if len(arguments) < 2:
                raise Error("`-m` needs the name of a module")
            return options, True, arguments[1:]
        if arguments[0] in flags:
            name, given = flags[arguments[0]]
            options[name] = given
            arguments = arguments[1:]
            continue
        if option not in names:
            if option.startswith("-"):
                raise Error(f"Unexpected option `{option}`")
            if not os.path.exists(option):
                raise Error(f"Failed to open `{option}`\n  cause: no such file")
            return options, False, arguments
        if not equals:
            if len(arguments) < 2:
                raise Error(f"`{option}` needs a value")
            value = arguments[1]
        arguments = arguments[1 if equals else 2 :]
        if names[option] == "max_entries":
            if not value.isdecimal():
                raise Error(f"`{option}` needs a number, not `{value}`")
            options["max_entries"] = int(value)
        else:
            options[names[option]] = value
    raise Error("Nothing to run: name a script")


class _Waiting(Recording):
    """A recording that begins when the program imports PyTorch, and is none if it never does."""

    _pid: int
    """The process that it was made for."""

    def start(self) -> Recording:
        """Begin to record, now or later."""
        if "torch" in sys.modules:
            return self._begin()
        sys.meta_path.insert(0, _Finder(self))
        return self

    def _begin(self) -> Recording:
        if self._pid != os.getpid():
            # A process that was forked off before PyTorch came has a recording of its own.
            self._pid, self.path = os.getpid(), _of_child(self.path)
        try:
            return super().start()
        except Error as error:
            # The program goes on without a recording.
            print(f"gpuheap: {error}", file=sys.stderr)
            return self

    def stop(self) -> Recording:
        """Write the recording, if there is one."""
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if not (isinstance(finder, _Finder) and finder.of is self)
        ]
        return super().stop()


def _when_torch_comes(recording: Recording) -> _Waiting:
    recording.__class__ = _Waiting
    assert isinstance(recording, _Waiting)
    recording._pid = os.getpid()
    return recording


class _Finder(importlib.abc.MetaPathFinder):
    """Sees `torch` being imported and begins the recording after it."""

    def __init__(self, of: _Waiting) -> None:
        self.of = of

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find `torch` as the others do, with a loader that tells."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.of)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: object, of: _Waiting) -> None:
        self._inner = inner
        self._of = of

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[attr-defined, no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if nobody had looked.
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner  # type: ignore[assignment]
        module.__loader__ = self._inner  # type: ignore[assignment]
        self._inner.exec_module(module)  # type: ignore[attr-defined]
        self._of._begin()
