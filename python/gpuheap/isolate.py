"""Functions in a process of their own, which gives all its memory back at the end, whatever happens inside."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from gpuheap import _transfer
from gpuheap._bytes import bytes_text, parse_bytes
from gpuheap._child import Child, Died, Limits, OverMemory, OverTime
from gpuheap.errors import Error

__all__ = ["Isolate", "IsolateCrash", "IsolateError", "IsolateMemory", "IsolateTimeout", "isolate"]

if sys.platform == "win32":  # pragma: no cover
    raise Error("`isolate` needs the processes of Linux or macOS", "use WSL 2")

P = ParamSpec("P")
T = TypeVar("T")


class IsolateError(Error):
    """A call in another process failed; the base of the reasons that follow.

    Raised itself if the function raised what cannot be made again here; ``traceback`` then is its traceback as text.
    """

    traceback: str | None = None


class IsolateTimeout(IsolateError, TimeoutError):
    """The call took longer than its limit; its process and all that it had started were ended."""


class IsolateMemory(IsolateError, MemoryError):
    """The processes of the call held more host memory than their limit, and were ended."""


class IsolateCrash(IsolateError):
    """The process ended before the call did: a signal, ``os._exit``, the kernel out of memory."""

    exit_code: int | None = None
    """As of a child process: negative for a signal."""


class RemoteTraceback(Exception):
    """Where an exception arose in the other process: the cause of the same exception here."""

    def __init__(self, text: str) -> None:
        """Keep the text."""
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        """The traceback as Python prints it."""
        return f'\n"""\n{self.text}"""'


def isolate(
    fn: Callable[..., T],
    /,
    *args: Any,
    timeout: float | None = None,
    host_memory: int | str | None = None,
    **kwargs: Any,
) -> T:
    """Run ``fn(*args, **kwargs)`` in a process of its own, and return what it returns.

    The process is a new interpreter (spawned, never forked), so this works when CUDA is initialised here, and the call
    has a CUDA context of its own. When it is over, the process is ended with everything that it started, and all its
    device and host memory is free again: after a result, an exception, a limit, Ctrl-C, or the end of this program.

    ``timeout`` is in seconds, the start of the process included (0.1 s; the first ``import torch`` takes seconds).
    ``host_memory`` is the most host memory, in bytes or as text (``"8GiB"``), that the process and its children may
    hold; it is looked at ten times a second (Linux), so a fast rise can overshoot. It limits resident memory: a limit
    on address space would break CUDA, which reserves far more than it uses.

    Functions may come from a notebook, a REPL, or be lambdas. Tensors cross as CPU copies in both directions, arrays
    of JAX, TensorFlow and CuPy as NumPy arrays; the graph of a computed tensor stays behind. What the call prints
    appears here.

    Raises what the function raised, with the traceback of the other process as its cause; :class:`IsolateTimeout`,
    :class:`IsolateMemory`, :class:`IsolateCrash`; or :class:`IsolateError` if the exception cannot be made again here.

    A function with parameters named ``timeout`` or ``host_memory`` is called by :meth:`Isolate.call`.

    >>> gpuheap.isolate(train, config, epochs=3, timeout=3600)
    """
    with Isolate(timeout=timeout, host_memory=host_memory) as own:
        return own.call(fn, *args, **kwargs)


class Isolate:
    """Processes for repeated calls: what a call leaves in its process (imports, a loaded model) is there for the next.

    ``workers`` processes are started when they are first needed; more calls at once, from threads, wait. ``timeout``
    and ``host_memory`` are for each call, as in :func:`isolate`. ``env`` are environment variables that the processes
    have in addition, such as ``{"CUDA_VISIBLE_DEVICES": "1"}``. After a timeout or a crash the next call gets a new
    process. :meth:`close`, or the end of the ``with`` block, ends them all.

    >>> with gpuheap.Isolate(timeout=60) as own:
    ...     sizes = [own.call(peak_of, batch) for batch in (8, 16)]
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        timeout: float | None = None,
        host_memory: int | str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Check the settings; starts nothing."""
        if workers < 1:
            raise ValueError(f"`workers` is {workers}, expected at least 1")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"`timeout` is {timeout}, expected a positive number of seconds")
        self._limits = Limits(timeout, None if host_memory is None else parse_bytes(host_memory))
        self._env = dict(env or {})
        self._free = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._children: set[Child] = set()
        self._closed = False
        # Also at the end of the program.
        self._finalizer = weakref.finalize(self, _end_all, self._children)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn(*args, **kwargs)`` in a process of this pool, and return what it returns. See :func:`isolate`."""
        data = _transfer.dumps((fn, args, kwargs))
        with self._free:
            child = self._take()
            try:
                kind, answer = child.call(data, self._limits)
            except OverTime:
                self._end(child)
                raise IsolateTimeout(f"The call took longer than {self._limits.seconds:g} s and was ended") from None
            except OverMemory as error:
                self._end(child)
                limit = bytes_text(self._limits.host_bytes or 0)
                message = f"The call held {bytes_text(error.host_bytes)} of host memory, over its limit of {limit}"
                raise IsolateMemory(message, "it was ended with all that it had started") from None
            except Died:
                self._end(child)
                if self._closed:
                    raise IsolateError("The pool was closed during the call") from None
                raise _crash(child.exit_code) from None
            except BaseException:
                # After Ctrl-C the call has had its chance to end by itself.
                self._end(child)
                raise
            self._give_back(child)
        if kind != Child.VALUE:
            _raise(answer)
        value: T = _transfer.loads(answer)
        return value

    def close(self) -> None:
        """End all processes, and wait until they are gone. A call that is under way in another thread fails."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = self._children.difference(idle)
        try:
            for child in busy:
                child.kill()
            for child in idle:
                child.close()
        finally:
            # Those to which an interruption did not let it come.
            for child in idle:
                self._end(child)

    def _take(self) -> Child:
        with self._lock:
            if self._closed:
                raise IsolateError("The pool is closed")
            while self._idle:
                child = self._idle.pop()
                if child.is_alive():
                    return child
                self._children.discard(child)
                child.end()
            child = Child(self._env)
            self._children.add(child)
            return child

    def _give_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        self._end(child)

    def _end(self, child: Child) -> None:
        # Known until it is gone: what an interruption leaves is ended with the pool.
        child.end()
        with self._lock:
            self._children.discard(child)

    def __enter__(self) -> Isolate:
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        self.close()


def _end_all(children: set[Child]) -> None:
    owner = os.getpid()
    while children:
        child = children.pop()
        # After a fork the processes are still the parent's.
        if child.owner == owner:
            child.close()


def _crash(exit_code: int | None) -> IsolateCrash:
    hint = None
    if exit_code is not None and exit_code < 0:
        text = f"signal {-exit_code}{_signal_name(-exit_code)}"
        if exit_code == -9:
            hint = "nobody here sent it: the kernel does when host memory runs out (`dmesg` tells)"
    else:
        text = "no exit code" if exit_code is None else f"exit code {exit_code}"
    error = IsolateCrash(f"The process of the call ended by itself ({text})", hint)
    error.exit_code = exit_code
    return error


def _signal_name(number: int) -> str:
    import signal

    try:
        return f", {signal.Signals(number).name}"
    except ValueError:
        return ""


def _raise(answer: bytearray) -> NoReturn:
    """Raise here what was raised there."""
    data, line, text, kind = _transfer.loads(answer)
    error: BaseException | None = None
    if data is not None and kind != "SystemExit":
        try:
            error = _transfer.loads(data)
        except Exception:
            # Said as text instead.
            error = None
    if isinstance(error, BaseException):
        raise error from RemoteTraceback(text)
    reason = "The function called for the end of the program" if kind == "SystemExit" else "The function raised"
    failed = IsolateError(f"{reason}: {line}\n\n{text.rstrip()}")
    failed.traceback = text
    raise failed
