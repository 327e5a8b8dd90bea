"""``gpuheap.explain``, ``html``, ``convert`` and ``main``: what the Rust crates do with a recording, for Python."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

from gpuheap import _core

__all__ = ["convert", "explain", "html", "main"]

_Path = str | PathLike[str]
_Moment = Literal["peak", "peak-reserved", "oom", "end"]


# A function of an extension module has neither types nor, without a second copy there, a text that `help` could show.
def explain(
    path: _Path,
    /,
    *,
    device: int | None = None,
    limit: int | str | None = None,
    at: _Moment | None = None,
) -> dict[str, Any]:
    """Explain a recording: verdict, findings with remedies, where the memory went.

    The result is what ``gpuheap explain --json`` prints: sizes are bytes, times microseconds, and no name changes
    from version to version (``schema`` says which form it is). Nothing in the file is run, and no GPU is needed.

    ``device`` is the ordinal of the device [default: the one with an OOM, else the fullest]; ``limit`` the size to
    which the account is closed, such as the card's, in bytes or as text (``"80GiB"``); ``at`` the moment that is
    described, ``"peak"``, ``"peak-reserved"``, ``"oom"`` or ``"end"`` [default: the OOM if there was one, else the
    peak].

    Raises :class:`gpuheap.Error` if the file cannot be read or has no such device or moment.

    >>> report = gpuheap.explain("snapshot.pickle")
    >>> report["verdict"]["headline"]
    """
    return _core.explain(path, device=device, limit=limit, at=at)


def html(
    path: _Path,
    out: _Path,
    /,
    *,
    device: int | None = None,
    limit: int | str | None = None,
    at: _Moment | None = None,
) -> None:
    """Write the report on a recording as one HTML file that needs no network: charts, flame graph, map of memory.

    The options are those of :func:`explain`. ``out`` is replaced as a whole or not at all.

    Raises :class:`gpuheap.Error` as :func:`explain` does, and if the file cannot be written.

    >>> gpuheap.html("snapshot.pickle", "report.html")
    """
    _core.html(path, out, device=device, limit=limit, at=at)


def convert(source: _Path | bytes, out: _Path, /) -> None:
    """Write a recording in gpuheap's own form: compressed, and read by every command.

    ``source`` is a file, or the bytes of one: a memory snapshot of PyTorch, pickled or JSON, plain or compressed, or a
    recording in gpuheap's own form. ``out`` is replaced as a whole or not at all.

    Raises :class:`gpuheap.Error` if the source cannot be read or the file not written.

    >>> gpuheap.convert("snapshot.pickle", "run.gpuheap")
    """
    _core.convert(source, out)


def main(arguments: Sequence[str], /) -> int:
    """Run a ``gpuheap`` command on recordings (``explain``, ``whatif``, ``diff``, …), and return its exit code.

    0 is done, 1 a check that failed, 2 bad input or use. The command writes to the streams of the process (its file
    descriptors 1 and 2), not to ``sys.stdout``. ``record`` and ``demo`` are there on the command line alone.

    >>> gpuheap.main(["explain", "snapshot.pickle", "--json", "--output", "report.json"])
    0
    """
    return _core.main(arguments)
