"""Recording a program: PyTorch's own history of its memory, and what a snapshot lacks.

A recording says what every block was for in the program's own words: which parameter, whose gradient, which state of
which optimizer. These names are taken when they cost nothing: after the first optimizer steps and at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from gpuheap import _core
from gpuheap._record import driver as _driver
from gpuheap._record import labels as _labels
from gpuheap._record import pace as _pace
from gpuheap._record.activations import MOST, Activations
from gpuheap._record.active import active as _active
from gpuheap._record.beat import Beat
from gpuheap._record.files import replace, writable
from gpuheap._record.torch import is_out_of_memory, usable_torch
from gpuheap.errors import Error

__all__ = ["Recording", "record", "step"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

MAX_ENTRIES = 1_000_000
"""Events that are kept by default: about 40 MB of host memory in the recording, and some 300 MB while it runs."""

NAMED_STEPS = (1, 2, 10)
"""The optimizer steps after which names are taken: the first makes the optimizer's state."""

WAIT_FOR_SAVE = 60.0
"""Seconds that an allocation that failed waits for a save that is under way."""

SAVES_ON_OOM = 3
"""How often a recording is saved because memory ran out; a program that catches it may run out again and again."""


def record(
    path: str | os.PathLike[str] | None = None,
    *,
    max_entries: int = MAX_ENTRIES,
    stacks: str = "python",
    stack_share: float = _pace.SHARE,
    names: bool = True,
    activations: bool = False,
    snapshot: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Recording:
    """Record what a program does with GPU memory, as a context manager, a decorator, or by ``start()`` and ``stop()``.

    ``path`` is where the recording goes [default: ``gpuheap-PID.gpuheap`` in the current folder]; every ``gpuheap``
    command reads it. ``max_entries`` is the most events that are kept: of a longer run the first are lost.
    ``stacks`` is ``"python"``, or ``"all"`` with native frames, which takes several times as long. ``stack_share`` is
    the share of the program's time that walks of its stack may take: where they would take more (a loop of small
    kernels), they are made in short stretches, and the stacks between are told from the same sequence of allocations;
    the report says how well that went. 1 walks at every allocation. With ``names``, parameters, gradients and
    optimizers' states are told by the program itself instead of by their sizes and lives; with ``activations``, what
    each module's forward pass made as well, which costs some microseconds a module (not in compiled models).
    ``snapshot`` also keeps PyTorch's own snapshot, pickled, at that path. With ``quiet``, nothing is said on standard
    error when memory runs out.

    When memory runs out, the recording is saved at once and the verdict goes to standard error. The exception goes on
    as it is, and nothing of it is kept. A long recording is also saved every few minutes (that takes a 300th of the
    time), so that what ends the process without a word leaves a recording, too. One that is never stopped ends with
    the program; in a process that is forked off it is not under way.

    Start it before the model is built. Raises :class:`gpuheap.Error` where PyTorch has no CUDA, or where ``path``
    cannot be written to.

    >>> with gpuheap.record("run.gpuheap") as recording:
    ...     train()
    >>> print(recording.report()["verdict"]["headline"])
    """
    return Recording(
        path,
        max_entries=max_entries,
        stacks=stacks,
        stack_share=stack_share,
        names=names,
        activations=activations,
        snapshot=snapshot,
        quiet=quiet,
    )


class Recording:
    """A recording under way, or one that has ended. See :func:`record`."""

    path: str
    """Where the recording is, or will be."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        stacks: str = "python",
        stack_share: float = _pace.SHARE,
        names: bool = True,
        activations: bool = False,
        snapshot: str | os.PathLike[str] | None = None,
        quiet: bool = False,
    ) -> None:
        """See :func:`record`."""
        if stacks not in ("python", "all"):
            raise Error(f"Failed to record\n  cause: `stacks` is {stacks!r}", 'give "python" or "all"')
        if max_entries < 1:
            raise Error(f"Failed to record\n  cause: `max_entries` is {max_entries}", "give at least 1")
        if not stack_share > 0:
            raise Error(f"Failed to record\n  cause: `stack_share` is {stack_share}", "give a share above 0, at most 1")
        self._options: dict[str, Any] = {
            "max_entries": max_entries,
            "stacks": stacks,
            "stack_share": stack_share,
            "names": names,
            "activations": activations,
            "snapshot": snapshot,
            "quiet": quiet,
        }
        self.path = os.fspath(path) if path is not None else f"gpuheap-{os.getpid()}.gpuheap"
        self._file = self.path
        self._names: dict[tuple[int, int, str], _labels.Label] = {}
        self._steps = 0
        self._saves = 0
        self._writes = 0
        self._hook: Any = None
        self._pace: _pace.Pace | None = None
        self._beat: Beat | None = None
        self._driver: _driver.Driver | None = None
        self._activations: Activations | None = None
        self._running = False
        self._make_locks()

    def _make_locks(self) -> None:
        # Memory can run out in any thread, and long recordings are saved by one of their own. Both may be asked for
        # again by the thread that has them: a signal's handler may save or stop while that is being done.
        self._saving = threading.RLock()
        self._ending = threading.RLock()

    def start(self) -> Recording:
        """Begin to record. Returns the recording itself."""
        torch = usable_torch()
        if self._running:
            raise Error("Failed to record\n  cause: this recording is under way already")
        # The program may change its folder.
        self._file = os.path.abspath(self.path)
        writable(self._file)
        if self._options["snapshot"] is not None:
            self._options["snapshot"] = os.path.abspath(self._options["snapshot"])
            writable(self._options["snapshot"])
        _active.claim(self)
        self._running = True
        try:
            self._begin_all(torch)
        except BaseException:
            self._end()
            raise
        return self

    def _begin_all(self, torch: Any) -> None:
        self._walk(True)
        observe = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if observe is not None and not _active.observed:
            # It can never be taken off: one for all recordings of the process.
            observe(_ran_out)
            _active.observed = True
        if self._options["names"]:
            with contextlib.suppress(ImportError):
                from torch.optim.optimizer import register_optimizer_step_post_hook

                self._hook = register_optimizer_step_post_hook(self._after_step)
        if self._options["activations"]:
            self._activations = Activations(torch)
        self._driver = _driver.Driver(torch)
        self._ask_driver()
        self._start_beat(torch)
        atexit.register(self._at_exit)

    def stop(self) -> Recording:
        """Write the recording and stop to record. Returns the recording itself."""
        with self._ending:
            if not self._running:
                return self
            try:
                if self._beat is not None:
                    self._beat.end()
                # While the thread ended, a signal's handler may have stopped it.
                if self._running:
                    self.save()
            finally:
                self._end()
        return self

    def _end(self) -> None:
        if not self._running:
            return
        self._running = False
        beat = self._beat
        hooks = (self._hook, self._activations)
        self._hook = self._activations = None
        self._beat = self._pace = self._driver = None
        _active.give_back(self)
        atexit.unregister(self._at_exit)
        for hook in hooks:
            if hook is not None:
                hook.remove()
        if beat is not None:
            beat.end()
        sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)

    def _at_exit(self) -> None:
        try:
            self.stop()
        except Exception as failure:
            print(f"gpuheap: {failure}", file=sys.stderr)

    def _forked(self) -> None:
        """This is a process that was forked off: what is recorded is the business of the one that it came from."""
        self._running = False
        self._make_locks()
        for hook in (self._hook, self._activations):
            if hook is not None:
                hook.remove()
        self._hook = self._activations = None
        self._beat = self._pace = self._driver = None
        atexit.unregister(self._at_exit)

    def save(self) -> str:
        """Write what was recorded so far, and go on. Returns the path."""
        if not self._running:
            raise Error("Failed to save the recording\n  cause: it is not under way")
        with self._saving:
            if self._options["names"]:
                # A recording without names is better than none.
                with contextlib.suppress(Exception):
                    self._take_names()
            self._write()
        return self.path

    def _write(self) -> None:
        self._writes += 1
        turn = self._writes
        if not self._running:
            return
        torch: Any = sys.modules["torch"]
        self._ask_driver()
        snapshot = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
        labels = list(self._names.values())
        notes = []
        if self._activations is not None:
            labels += self._activations.labels()
            if self._activations.full:
                notes.append(f"of the outputs of modules, the first {MOST:,} have names")
        beside = {
            "names": [tuple(label) for label in labels],
            "gaps": [] if self._pace is None else self._pace.all_gaps(),
            "memory": [] if self._driver is None else [tuple(row) for row in self._driver.memory],
            "facts": _driver.facts(torch),
            "notes": notes,
        }
        if turn != self._writes:
            # A signal's handler has written, and perhaps stopped, in between: what is here is older, or less.
            return
        _core.save(snapshot, self._file, beside)
        if self._options["snapshot"] is not None:
            replace(self._options["snapshot"], snapshot)

    def _start_beat(self, torch: Any) -> None:
        pace = None
        paced = self._options["stacks"] == "python" and self._options["stack_share"] < 1
        if paced and _pace.is_possible(torch):
            self._pace = _pace.Pace(self._walk, _pace.walk_seconds(torch), self._options["stack_share"])
            pace = functools.partial(self._next_pace, torch)
        self._beat = Beat(pace=pace, ask=functools.partial(self._ask_driver, processes=False), save=self._autosave)
        self._beat.start()

    def _next_pace(self, torch: Any) -> float:
        # Before anything is allocated there are no counters, and asking for them must not make a context.
        if self._pace is None or not torch.cuda.is_initialized():
            return _pace.PERIOD
        return self._pace.next(time.monotonic(), _pace.allocations(torch, range(torch.cuda.device_count())))

    def _walk(self, on: bool) -> None:
        """Let PyTorch walk the stack at each allocation, or not. Its history goes on."""
        sys.modules["torch"].cuda.memory._record_memory_history(
            context="alloc" if on else None,
            max_entries=self._options["max_entries"],
            stacks=self._options["stacks"],
        )

    def _ask_driver(self, *, processes: bool = True) -> None:
        # What NVML does not tell is left out of the recording.
        with contextlib.suppress(Exception):
            if self._driver is not None:
                self._driver.ask(processes=processes)

    def _autosave(self) -> None:
        # Names are taken in the program's own threads: its objects are not looked through while it changes them.
        if self._saving.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._saving.release()

    def report(self, **options: Any) -> dict[str, Any]:
        """Explain the recording: what :func:`gpuheap.explain` says of it."""
        return _core.explain(self._file, **options)

    def __enter__(self) -> Recording:
        """Begin to record."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the recording; say what it means if memory ran out."""
        ran_out = error is not None and is_out_of_memory(error)
        try:
            self.stop()
        except Exception as failure:
            if error is None:
                raise
            # The program's own error is what matters.
            print(f"gpuheap: {failure}", file=sys.stderr)
            return
        if ran_out and not self._options["quiet"]:
            self._say()

    def __call__(self, function: _Function) -> _Function:
        """Record each call of a function, each time to the same path."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            kind = "generators" if inspect.isgeneratorfunction(function) else "coroutines"
            raise Error(f"Failed to record `{function.__name__}`\n  cause: {kind} return before they run", "use `with`")

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Recording(self.path, **self._options):
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]

    def __repr__(self) -> str:
        """Path and state."""
        return f"<gpuheap.Recording {self.path!r}, {'under way' if self._running else 'not under way'}>"

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        if self._steps in NAMED_STEPS:
            # A recording must not end the program that it records.
            with contextlib.suppress(Exception):
                self._take_names()

    def _take_names(self) -> None:
        now = time.time_ns() // 1000
        for label in _labels.labels(sys.modules["torch"], now):
            # The first name of an address is the most telling one; later ones may be of another block.
            known = self._names.get((label.device, label.address, label.name))
            if known is None:
                self._names[(label.device, label.address, label.name)] = label

    def _ran_out(self) -> None:
        self._saves += 1
        if self._saves > SAVES_ON_OOM or not self._saving.acquire(timeout=WAIT_FOR_SAVE):
            return
        try:
            with contextlib.suppress(Exception):
                if self._options["names"]:
                    self._take_names()
                self._write()
        finally:
            self._saving.release()

    def _say(self) -> None:
        try:
            verdict = self.report()["verdict"]
        except Error as failure:
            print(f"gpuheap: {failure}", file=sys.stderr)
            return
        print(f"gpuheap: {verdict['headline']}", file=sys.stderr)
        if verdict["remedy"]:
            print(f"gpuheap: {verdict['remedy']}", file=sys.stderr)
        print(f"gpuheap: `gpuheap explain {self.path}` says more", file=sys.stderr)


def step() -> None:
    """Mark the end of a step of the program's loop, where no optimizer does: leaks are told by steps.

    Costs some microseconds, and nothing while no recording is under way.

    >>> for request in requests:
    ...     serve(request)
    ...     gpuheap.step()
    """
    recording = _active.recording
    if recording is None:
        return
    torch = sys.modules["torch"]
    # What PyTorch's own profiler writes at each step; readers of snapshots know it.
    with torch.autograd.profiler.record_function(f"ProfilerStep#{_active.marks}"):
        _active.marks += 1


def _ran_out(*_: Any) -> None:
    """Called by PyTorch's allocator before it raises."""
    recording = _active.recording
    if recording is not None:
        recording._ran_out()
