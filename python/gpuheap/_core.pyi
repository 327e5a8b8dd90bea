"""The extension module: what the Rust crates do, for Python."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, final

_Path = str | PathLike[str]
_Moment = Literal["peak", "peak-reserved", "oom", "end"]

__all__ = [
    "Monitor",
    "convert",
    "demo",
    "explain",
    "fit_html",
    "fit_plan",
    "fit_traced",
    "html",
    "main",
    "save",
    "version",
]

version: Final[str]
"""The version of gpuheap."""

def explain(
    path: _Path,
    /,
    *,
    device: int | None = None,
    limit: int | str | None = None,
    at: _Moment | None = None,
) -> dict[str, Any]:
    """What :func:`gpuheap.explain` calls."""

def convert(source: _Path | bytes, out: _Path, /) -> None:
    """What :func:`gpuheap.convert` calls."""

def save(source: bytes, out: _Path, beside: Mapping[str, Any], /) -> None:
    """Write a pickled snapshot of this process as a recording, with what the program says of itself in ``beside``.

    All of these have to be there; times are microseconds of Unix time, sizes bytes.

    - ``names``: rows of device, address, time, kind and name; kinds are ``parameter``, ``gradient``,
      ``optimizer_state``, ``activation``, ``input``, ``cache``, and anything else
    - ``gaps``: rows of from and to, in which no stacks were recorded: they are told from the rest of the recording
    - ``memory``: rows of device, time, total, free and reserved bytes, and what this process and what others held (or
      None), as the driver says
    - ``facts``: rows of a name and a value, such as versions
    - ``notes``: sentences for the reader of the report

    Raises :class:`gpuheap.Error` if the snapshot cannot be read or the file not written.
    """

def html(
    path: _Path,
    out: _Path,
    /,
    *,
    device: int | None = None,
    limit: int | str | None = None,
    at: _Moment | None = None,
) -> None:
    """What :func:`gpuheap.html` calls."""

def main(arguments: Sequence[str], /) -> int:
    """What :func:`gpuheap.main` calls."""

def fit_plan(traces: str | bytes | Sequence[str | bytes], options: str, /) -> str:
    """Return the plan, as JSON, for a model from its trace, or from traces of it at several batch sizes.

    ``traces`` are JSON, plain, gzip or zstd; traces with levers applied beforehand name them in ``applied``.
    ``options`` is a JSON object; all of these may be left out:

    - ``budget_bytes``: what the program may take of each device, its context included; all of the device if left out
    - ``device``: its type, such as ``H200``; ``device_file``: where to read more types; ``gpus``: how many
    - ``batch``: samples a step, on all devices together
    - ``conf``: settings of the allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``
    - ``set``: levers that the plan must have; ``without``: names of those that it may not have; ``allow``: names of
      those that it may have although they change results
    - ``front``: whether to work out time against memory, too; ``timelines``: whether to keep memory through time, too
    - ``calibration``: where a calibration of the device is kept

    Raises :class:`gpuheap.Error` if a trace or an option cannot be used.
    """

def fit_traced(trace: Callable[[str, int | None], str | bytes], options: str, /) -> str:
    """Return the plan, as JSON, for a program that ``trace`` traces when it is asked to.

    ``trace`` is called in this thread with the levers to apply before, as a JSON list, and with a batch size, or None
    for the program's own; it returns the trace. An exception of it for one trace among others is no reason to give up:
    it is raised again only where there is no plan without that trace. ``options`` are those of :func:`fit_plan`.

    Raises:
        Error: the traces or the options cannot be used.
    """

def fit_html(plan: str, out: _Path, /, *, changes: tuple[str, str] | None = None) -> None:
    """Write the page of a plan, which is JSON as :func:`fit_plan` returns it, as one HTML file.

    ``changes`` are the changed lines of the program as a unified diff, and the line that starts it.

    Raises :class:`gpuheap.Error` if the plan is none, or the file cannot be written.
    """

def demo() -> bytes:
    """Return a recording of a small program that leaks, as PyTorch wrote it (compressed)."""

@final
class Monitor:
    """The judge of one device's counters, for :class:`gpuheap.watch`. ``unit`` is what a step is, in words."""

    def __new__(cls, unit: str) -> Monitor: ...
    def push(
        self,
        step: int,
        seconds: float,
        allocated: int,
        blocks: int | None,
        reserved: int,
        peak_active: int | None,
        peak_reserved: int | None,
        collected: int | None,
        retries: int,
        ooms: int,
        /,
    ) -> None:
        """Take the counters after a step. A step that is not later than the one before is left out."""

    def health(
        self,
        *,
        free: int | None = None,
        total: int | None = None,
        others: int | None = None,
        limit: int | None = None,
    ) -> dict[str, Any] | None:
        """Judge what was seen; None before the first step."""
