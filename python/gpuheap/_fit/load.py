"""Finds the function that makes the program, by ``FILE:FUNCTION`` or ``package.module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuheap._fit.adapters.names import is_name, make_of
from gpuheap._fit.errors import TraceError, place_of, said
from gpuheap.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["load", "split"]


def split(name: str) -> tuple[str, str]:
    """``train.py:make`` as its two parts.

    Raises:
        TraceError: there are not two.
    """
    # A drive letter on Windows has a colon, too.
    file, colon, function = name.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise TraceError(
            f"{name!r} names no function: it needs a file and a function, such as train.py:make",
            "Write a function that returns (model, optimizer, loss, batch), and name it after the file and a colon.",
        )
    return file, function


def load(name: str) -> Callable[..., Any]:
    """The function that ``FILE:FUNCTION`` names. The file's own folder comes first on the path, as in ``python FILE``.

    A model of a library, such as ``torchvision:resnet152``, does as well: with random weights and data.

    Raises:
        TraceError: there is no such file or function, or the file fails when it is imported.
    """
    if is_name(name):
        try:
            return make_of(name)
        except Error as error:
            raise TraceError(error.message, error.hint) from error
    file, function = split(name)
    module = _import(file)
    found = getattr(module, function, None)
    if found is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = f"It has {', '.join(sorted(names)[:8])}." if names else "It has no functions."
        raise TraceError(f"{file} has no {function!r}", near)
    if not callable(found):
        raise TraceError(f"{function!r} in {file} is of type {type(found).__name__}, and not a function")
    made: Callable[..., Any] = found
    return made


def _import(file: str) -> ModuleType:
    path = Path(file)
    if not file.endswith(".py") and not path.exists():
        try:
            with _importing(str(Path.cwd())):
                return importlib.import_module(file)
        except ModuleNotFoundError as error:
            if error.name is not None and file.startswith(error.name):
                raise TraceError(f"there is no file and no module {file!r}") from error
            raise TraceError(_failed(file, error), _hint(error)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise TraceError(_failed(file, error)) from error
    if not path.is_file():
        what = "a folder" if path.is_dir() else "not there"
        raise TraceError(f"{file} is {what}: a Python file is needed")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise TraceError(f"{file} is no Python file: its name has to end with .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    # Classes of the file are looked up by this name, by dataclasses and by pickle.
    sys.modules[path.stem] = module
    try:
        with _importing(str(path.resolve().parent)):
            spec.loader.exec_module(module)
    except BaseException as error:
        if before is None:
            sys.modules.pop(path.stem, None)
        else:
            sys.modules[path.stem] = before
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TraceError(_failed(file, error, str(path.resolve())), _hint(error)) from error
    return module


def _failed(file: str, error: BaseException, resolved: str | None = None) -> str:
    if isinstance(error, SyntaxError):
        return f"{file} is not valid Python: {error.msg} ({error.filename}:{error.lineno})"
    place = place_of(error.__traceback__, resolved)
    message = f"{file} fails when it is imported: {said(error)}"
    return f"{message}\n  at {place}" if place else message


_NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs are available", "not compiled with CUDA enabled")
"""What PyTorch says where there is no GPU, or none that it can use."""


def _hint(error: BaseException) -> str | None:
    """Most often a package is missing because it is another Python that has it, and a GPU because none is needed."""
    if any(part in said(error) for part in _NO_GPU):
        return "Bring the model to the GPU within make(): there it is traced, and no GPU is needed."
    if not isinstance(error, ModuleNotFoundError):
        return None
    return f"This is the Python {sys.executable}; name the one that has the packages: `gpuheap fit --python PATH`."


@contextmanager
def _importing(folder: str) -> Iterator[None]:
    # It stays on the path: functions import when they are called.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    yield
