"""Frames of running and of finished calls, and their local variables, read without leaving anything behind."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

__all__ = ["Call", "handled_exceptions", "is_own_code", "local_items", "place", "running_calls", "short_file"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Before 3.13 `frame.f_locals` of a function is a copy that the frame keeps, with all its values.
_LOCALS_ARE_A_COPY = sys.version_info < (3, 13)


def is_own_code(code: CodeType) -> bool:
    """Whether a frame belongs to this package: what we hold while we look is nobody's finding."""
    return code.co_filename.startswith(_PACKAGE)


def short_file(path: str) -> str:
    """A file as one names it in talk: `train.py`; a notebook's cell keeps its angle brackets."""
    if path.startswith("<"):
        return path
    name = os.path.basename(path)
    # IPython writes each cell to a file of its own: /tmp/ipykernel_71/3062934.py
    if os.path.basename(os.path.dirname(path)).startswith("ipykernel_"):
        return f"notebook cell {os.path.splitext(name)[0]}"
    return name


def place(code: CodeType, line: int | None = None) -> str:
    """`train.py:42`, by default where the function begins."""
    return f"{short_file(code.co_filename)}:{code.co_firstlineno if line is None else line}"


def local_items(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values of a frame's local variables, cells and free variables included.

    Module level is left out, as its names are globals. Up to Python 3.12 reading `f_locals` makes the frame keep a copy
    of every value, so that `del x` in the running function would no longer free `x`; the copy is emptied again, unless
    the program itself holds it (as the result of `locals()`).
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals
        if namespace is frame.f_globals or type(namespace) is not dict:
            return []
        return list(namespace.items())
    if not _LOCALS_ARE_A_COPY:
        return list(frame.f_locals.items())
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    copy = frame.f_locals
    if type(copy) is not dict:
        return []
    items = [(name, value) for name, value in copy.items() if name in names]
    # Our name, the frame's own reference, and the argument of getrefcount.
    if sys.getrefcount(copy) <= 3:
        if names.issuperset(copy):
            copy.clear()
        else:
            for name, _ in items:
                copy.pop(name, None)
    return items


@dataclass(frozen=True, slots=True)
class Call:
    """A running call: its frame, and the name of its thread unless that is the one that asks."""

    frame: FrameType
    thread: str | None


def running_calls() -> list[Call]:
    """All running calls of all threads but our own, the innermost of the current thread first."""
    current = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    calls: list[Call] = []
    frames = sys._current_frames()
    for ident in sorted(frames, key=lambda ident: ident != current):
        frame: FrameType | None = frames[ident]
        thread = None if ident == current else names.get(ident, f"thread {ident}")
        while frame is not None:
            if not is_own_code(frame.f_code):
                calls.append(Call(frame, thread))
            frame = frame.f_back
    # The dictionary would keep every thread's innermost frame, ours included, in a cycle with this very frame.
    frames.clear()
    return calls


def handled_exceptions() -> list[BaseException]:
    """The exception that each thread is handling at the moment, innermost handler only."""
    handled: list[BaseException] = []
    for value in sys._current_exceptions().values():
        # Up to Python 3.11 what `sys.exc_info()` returns.
        error: object = value[1] if isinstance(value, tuple) else value
        if isinstance(error, BaseException):
            handled.append(error)
    return handled
