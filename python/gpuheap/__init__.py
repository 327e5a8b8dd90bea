"""Explains GPU memory, gives it back and keeps it healthy.

On a recording, no GPU needed: :func:`explain`, :func:`html`, :func:`convert`, and :func:`main`, which is the command
``gpuheap``. Before a program runs: :func:`fit` says whether it will fit, and plans what makes it. In a running program:
:func:`record`, :func:`step`, :func:`watch`, :func:`doctor`, :func:`holders`, :func:`release`, :func:`scope`,
:func:`isolate`, :func:`find_batch_size` and :func:`prefetch`. ``help(gpuheap.record)`` and its like say everything
about a call.

Importing this package imports no framework, and neither does a call, unless the program has it already. Every name
is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuheap._core import version as __version__
    from gpuheap._step import step as step
    from gpuheap.batch_size import BatchSize as BatchSize
    from gpuheap.batch_size import BatchSizeError as BatchSizeError
    from gpuheap.batch_size import find_batch_size as find_batch_size
    from gpuheap.doctor import doctor as doctor
    from gpuheap.errors import Error as Error
    from gpuheap.explain import convert as convert
    from gpuheap.explain import explain as explain
    from gpuheap.explain import html as html
    from gpuheap.explain import main as main
    from gpuheap.fit import Fit as Fit
    from gpuheap.fit import Plan as Plan
    from gpuheap.fit import fit as fit
    from gpuheap.holders import holders as holders
    from gpuheap.isolate import Isolate as Isolate
    from gpuheap.isolate import IsolateCrash as IsolateCrash
    from gpuheap.isolate import IsolateError as IsolateError
    from gpuheap.isolate import IsolateMemory as IsolateMemory
    from gpuheap.isolate import IsolateTimeout as IsolateTimeout
    from gpuheap.isolate import isolate as isolate
    from gpuheap.prefetch import prefetch as prefetch
    from gpuheap.record import Recording as Recording
    from gpuheap.record import record as record
    from gpuheap.release import release as release
    from gpuheap.scope import BudgetExceeded as BudgetExceeded
    from gpuheap.scope import LeakError as LeakError
    from gpuheap.scope import LeakWarning as LeakWarning
    from gpuheap.scope import scope as scope
    from gpuheap.watch import Health as Health
    from gpuheap.watch import watch as watch

# Public names and the modules that define them.
_EXPORTS = {
    "BatchSize": "gpuheap.batch_size",
    "BatchSizeError": "gpuheap.batch_size",
    "BudgetExceeded": "gpuheap.scope",
    "Error": "gpuheap.errors",
    "Fit": "gpuheap.fit",
    "Health": "gpuheap.watch",
    "Isolate": "gpuheap.isolate",
    "IsolateCrash": "gpuheap.isolate",
    "IsolateError": "gpuheap.isolate",
    "IsolateMemory": "gpuheap.isolate",
    "IsolateTimeout": "gpuheap.isolate",
    "LeakError": "gpuheap.scope",
    "LeakWarning": "gpuheap.scope",
    "Plan": "gpuheap.fit",
    "Recording": "gpuheap.record",
    "convert": "gpuheap.explain",
    "doctor": "gpuheap.doctor",
    "explain": "gpuheap.explain",
    "find_batch_size": "gpuheap.batch_size",
    "fit": "gpuheap.fit",
    "holders": "gpuheap.holders",
    "html": "gpuheap.explain",
    "isolate": "gpuheap.isolate",
    "main": "gpuheap.explain",
    "prefetch": "gpuheap.prefetch",
    "record": "gpuheap.record",
    "release": "gpuheap.release",
    "scope": "gpuheap.scope",
    "step": "gpuheap._step",
    "watch": "gpuheap.watch",
}

__all__ = [
    "BatchSize",
    "BatchSizeError",
    "BudgetExceeded",
    "Error",
    "Fit",
    "Health",
    "Isolate",
    "IsolateCrash",
    "IsolateError",
    "IsolateMemory",
    "IsolateTimeout",
    "LeakError",
    "LeakWarning",
    "Plan",
    "Recording",
    "__version__",
    "convert",
    "doctor",
    "explain",
    "find_batch_size",
    "fit",
    "holders",
    "html",
    "isolate",
    "main",
    "prefetch",
    "record",
    "release",
    "scope",
    "step",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = import_module("gpuheap._core").version
    elif name in _EXPORTS:
        value = getattr(import_module(_EXPORTS[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `gpuheap.scope` the function: importing a submodule would otherwise put the module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _EXPORTS and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # cloudpickle knows modules by their exact type; functions of a script that use `gpuheap` go to other processes.
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
