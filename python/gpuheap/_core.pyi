"""The extension module: what the Rust crates do, for Python."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal

_Path = str | PathLike[str]
_Moment = Literal["peak", "peak-reserved", "oom", "end"]

__all__ = ["Monitor", "convert", "demo", "explain", "html", "main", "save", "version"]

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
    """Explain a recording: verdict, findings with remedies, where the memory went.

    The result is what ``gpuheap explain --json`` prints: sizes are bytes, times microseconds, and no name changes
    from version to version (``schema`` says which form it is). Nothing in the file is run, and no GPU is needed.

    ``device`` is the ordinal of the device [default: the one with an OOM, else the fullest]; ``limit`` the size to
    which the account is closed, such as the card's, in bytes or as text (``"80GiB"``); ``at`` the moment that is
    described [default: the OOM if there was one, else the peak].

    Raises :class:`gpuheap.Error` if the file cannot be read or has no such device or moment.

    >>> report = gpuheap.explain("snapshot.pickle")
    >>> report["verdict"]["headline"]
    """

def convert(source: _Path | bytes, out: _Path, /) -> None:
    """Write a recording in gpuheap's own form: compressed, and read by every command.

    ``source`` is a file, or the bytes of one: a memory snapshot of PyTorch, pickled or JSON, plain or compressed, or a
    recording in gpuheap's own form. ``out`` is replaced as a whole or not at all.

    Raises :class:`gpuheap.Error` if the source cannot be read or the file not written.

    >>> gpuheap.convert("snapshot.pickle", "run.gpuheap")
    """

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
    """Write the report on a recording as one HTML file that needs no network: charts, flame graph, map of memory.

    The options are those of :func:`explain`. ``out`` is replaced as a whole or not at all.

    Raises :class:`gpuheap.Error` as :func:`explain` does, and if the file cannot be written.

    >>> gpuheap.html("snapshot.pickle", "report.html")
    """

def main(arguments: Sequence[str], /) -> int:
    """Run the ``gpuheap`` command with these arguments, and return its exit code.

    0 is done, 1 a check that failed, 2 bad input or use. The command writes to the streams of the process (its file
    descriptors 1 and 2), not to ``sys.stdout``.

    >>> gpuheap.main(["explain", "snapshot.pickle", "--json", "--output", "report.json"])
    0
    """

def demo() -> bytes:
    """Return a recording of a small program that leaks, as PyTorch wrote it (compressed)."""

class Monitor:
    """The judge of one device's counters, for :class:`gpuheap.watch`. ``unit`` is what a step is, in words."""

    def __new__(cls, unit: str, /) -> Monitor: ...
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
