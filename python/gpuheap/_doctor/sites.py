"""Places in the user's code: the frames of a call that belong neither to a library nor to this package."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType
from typing import NamedTuple

from gpuheap._frames import is_own_code, short_file

__all__ = ["Site", "Stack", "function_site", "is_user_code", "user_stack"]

_LIBRARIES = tuple(
    sorted(
        {
            os.path.join(path, "")
            for name in ("stdlib", "platstdlib", "purelib", "platlib")
            if (path := sysconfig.get_path(name))
        }
    )
)
_MOST = 6
# The functions of PyTorch that call a module's hooks, and its `forward`.
_CALLERS = frozenset(("_call_impl", "_wrapped_call_impl", "inner"))
_known: dict[CodeType, bool] = {}


class Site(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """`train.py:42 (step)`."""
        return f"{short_file(self.file)}:{self.line} ({self.function})"


class Stack(NamedTuple):
    """Where something happened."""

    sites: tuple[Site, ...]
    """Lines of the user's code, the innermost first."""
    in_hook: bool = False
    """Whether the innermost was called by a module as one of its hooks."""


def is_user_code(code: CodeType) -> bool:
    """Whether a frame with this code is the user's own."""
    known = _known.get(code)
    if known is None:
        file = code.co_filename
        torch = getattr(sys.modules.get("torch"), "__path__", None)
        inside = (*_LIBRARIES, *(os.path.join(path, "") for path in torch or ()))
        known = not (
            is_own_code(code) or file.startswith(inside) or "site-packages" in file or file.startswith("<frozen")
        )
        _known[code] = known
    return known


def user_stack(frame: FrameType | None) -> Stack:
    """The user's lines of the call that `frame` belongs to."""
    sites: list[Site] = []
    in_hook = False
    while frame is not None and len(sites) < _MOST:
        code = frame.f_code
        if is_user_code(code):
            if not sites and frame.f_back is not None:
                caller = frame.f_back.f_code
                in_hook = (
                    caller.co_name in _CALLERS
                    and code.co_name != "forward"
                    and caller.co_filename.endswith("module.py")
                    and not is_user_code(caller)
                )
            sites.append(Site(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return Stack(tuple(sites), in_hook)


def function_site(function: object) -> Site | None:
    """Where a function is defined; what it wraps, if it wraps one."""
    for _ in range(8):
        code = getattr(function, "__code__", None)
        if type(code) is CodeType:
            return Site(code.co_filename, code.co_firstlineno, code.co_name)
        inner = getattr(function, "__func__", None) or getattr(function, "func", None)
        if inner is None:
            return None
        function = inner
    return None
