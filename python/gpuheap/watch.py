"""The periodic health check: how much memory there is, what grows, and when it runs out, into the training log."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpuheap import _core, _step
from gpuheap._bytes import parse_bytes
from gpuheap._frameworks.cupy import loaded_cupy
from gpuheap._frameworks.jax import loaded_jax
from gpuheap._frameworks.tensorflow import loaded_tensorflow
from gpuheap._tensors import loaded_torch
from gpuheap._watch import callbacks
from gpuheap._watch.arrays import Cupy, Jax, TensorFlow
from gpuheap._watch.collector import Collector
from gpuheap._watch.health import Health, health_of
from gpuheap._watch.pace import Pace
from gpuheap._watch.rank import rank
from gpuheap._watch.sinks import Place, Sink, sinks_of
from gpuheap._watch.source import Around, Given, Source
from gpuheap._watch.steps import OptimizerSteps
from gpuheap._watch.torch import Torch
from gpuheap.errors import Error, described

__all__ = ["Health", "watch"]

SHARE = 0.0003
"""The share of the time that counters may take: a loop with steps of a millisecond is looked at every few of them."""

ALWAYS = 64
"""So many steps are looked at one by one in any case, so that what goes wrong at once is told at once."""

_logger = logging.getLogger("gpuheap")


class _Watched:
    """One device, and its judge."""

    __slots__ = ("judge", "last", "name", "source")

    def __init__(self, name: str, source: Source, unit: str) -> None:
        self.name = name
        self.source = source
        self.judge = _core.Monitor(unit)
        self.last: Health | None = None


class watch:
    """Follow the memory of a program: a context manager, or `start()` and `stop()`.

    After each step the allocators' counters are taken; every so many steps they are judged, by the code that judges
    recordings: whether live memory leaks, piles up as garbage until Python's collector runs, or grows by plan; whether
    reserved memory grows alone (fragmentation), or memory outside the allocator; how many steps are left until memory
    runs out. Leaks are told by the count of live blocks, from eight steps on; a buffer that is still filling looks the
    same until it is full, and the sentence says so.

    A step ends after a step of PyTorch's optimizers, or where the program says so: by `step()` of this object, or by
    `gpuheap.step()`. Once it has said so, optimizers are no longer followed.

    Args:
        every: how many steps lie between two judgements.
        to: where they go: `"log"` (logger `gpuheap`, one line when the kind changes, a warning if it is sick), a path
            ending in `.jsonl`, a `logging.Logger`, a TensorBoard `SummaryWriter`, a wandb run or `wandb`, `mlflow`,
            an OpenTelemetry meter or `"otel"`, a function that takes a `Health`, or a list of these. One that raises
            is told once and left out.
        source: a function that returns counters, for an allocator of your own: a mapping with `allocated` and, as far
            as they are known, `blocks`, `reserved`, `peak_active`, `peak_reserved`, `retries`, `ooms`, `free`, `total`,
            `others`, `limit`; or such a mapping for each device by its name. Without it: PyTorch, JAX, TensorFlow and
            CuPy, as far as the program has loaded them and they use a device.
        limit: the most that may be reserved on each device, in bytes or as text (`"24GiB"`), for the steps left
            [default: what the device has, or PyTorch's own limit].

    Nothing of a model or optimizer is kept. In a process that was forked off, such as a worker of a `DataLoader`,
    nothing is done. On a machine without a GPU the program goes on, and it is said once that there is nothing to watch.

    Costs some 0.03 % of the time for counters, and per judgement about 0.3 ms and what `to` takes.

    Raises:
        gpuheap.Error: `every`, `to` or `limit` cannot be used; from a step, if `source` returns anything else.

    Example:
        >>> import gpuheap
        >>> with gpuheap.watch(every=10, to=print, source=lambda: {"allocated": 1 << 20, "blocks": 3}) as w:
        ...     for _ in range(20):
        ...         w.step()
        Health(step=10, ...
    """

    def __init__(
        self,
        every: int = 100,
        to: Any = "log",
        *,
        source: Callable[[], Mapping[str, Any]] | None = None,
        limit: int | str | None = None,
    ) -> None:
        """Checks the arguments; nothing is looked at before it is started."""
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise Error(f"Failed to watch\n  cause: `every` is {every!r}", "give a number of steps, at least 1")
        if source is not None and not callable(source):
            raise Error("Failed to watch\n  cause: `source` is no function", "give a function that returns counters")
        try:
            self._limit = None if limit is None else parse_bytes(limit)
        except ValueError as error:
            raise Error(f"Failed to watch\n  cause: {error}") from error
        self._every = every
        self._given = source
        self._sinks: list[Sink] = sinks_of(to)
        self._lock = threading.RLock()
        self._inside = False
        self._running = False
        self._pid = 0
        self._optimizers = OptimizerSteps(self._optimizer_stepped)
        self._collector = Collector(self._allocated)
        self._reset("step")

    def _reset(self, unit: str) -> None:
        self._unit = unit
        self._steps = 0
        self._checked = 0
        self._explicit = False
        self._told: set[str] = set()
        self._sources: dict[str, Source] = {}
        self._devices: dict[str, _Watched] = {}
        self._pace = Pace(SHARE)
        self._began = time.monotonic()

    # Beginning and end

    def start(self) -> watch:
        """Begin. Returns the watch itself. One that is under way goes on."""
        if self._pid != os.getpid():
            # The lock of a parent may be held by a thread that is not here.
            self._lock, self._inside, self._running = threading.RLock(), False, False
        with self._lock:
            if self._running:
                return self
            self._reset("step")
            self._running = True
            self._pid = os.getpid()
            if self._given is None:
                self._collector.given_back.clear()
                self._collector.start()
            if loaded_torch() is not None:
                self._optimizers.start()
            if self.step not in _step.listeners:
                _step.listeners.append(self.step)
        return self

    def stop(self) -> None:
        """End, with a last judgement if there were steps since the one before. Does nothing if it has ended."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._running:
                return
            self._running = False
            self._optimizers.stop()
            self._collector.stop()
            if self.step in _step.listeners:
                _step.listeners.remove(self.step)
            if self._steps > self._checked:
                self._guarded(self._check)

    def __enter__(self) -> watch:
        """Begin."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End. An exception goes on."""
        self.stop()

    def __repr__(self) -> str:
        """State, in short."""
        state = "under way" if self._running else "not under way"
        return f"<gpuheap.watch, {state}, {self._steps} steps>"

    # Steps

    def step(self) -> None:
        """A step has ended. From the first call on, steps of optimizers are not counted."""
        if not self._running or os.getpid() != self._pid:
            return
        with self._lock:
            if not self._explicit:
                if self._steps:
                    # What optimizers had begun to count were other steps.
                    self._reset("step")
                self._explicit = True
                self._optimizers.stop()
            self._guarded(self._tick)

    def _optimizer_stepped(self) -> None:
        if not self._running or os.getpid() != self._pid:
            return
        with self._lock:
            if self._steps == 0:
                self._unit = "optimizer step"
            self._guarded(self._tick)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong in a watch, the training goes on."""
        if self._inside:
            return
        self._inside = True
        try:
            work()
        except Error:
            # A mistake in what the program gave us, which it wants to know.
            raise
        except Exception as error:
            self._say_once("failed", f"the watch failed and ends: {described(error)}")
            self._running = False
            self._optimizers.stop()
            self._collector.stop()
        finally:
            self._inside = False

    def _tick(self) -> None:
        self._steps += 1
        steps = self._steps
        due = steps % self._every == 0
        clock = self._pace.clock
        start = clock()
        if due or steps <= ALWAYS or self._pace.ready(start) or not self._paced():
            if not self._devices:
                self._look_for_devices()
            given_back = self._collector.given_back
            for one in tuple(self._devices.values()):
                self._sample(one, steps, start, given_back)
            self._pace.spent(clock() - start)
        if due:
            self._check()

    def _paced(self) -> bool:
        return all(source.paced for source in self._sources.values())

    def _sample(self, one: _Watched, step: int, now: float, given_back: dict[str, int]) -> None:
        try:
            allocated, blocks, reserved, active, most, retries, ooms = one.source.counters(one.name)
        except Error:
            raise
        except Exception as error:
            self._say_once(one.name, f"the counters of `{one.name}` cannot be read: {described(error)}")
            self._devices.pop(one.name, None)
            return
        collected = given_back.get(one.name, 0) if one.source.collects else None
        one.judge.push(step, now, allocated, blocks, reserved, active, most, collected, retries, ooms)

    def _allocated(self) -> dict[str, int]:
        """Bytes by device, for a look before and after a collection."""
        return {
            one.name: one.source.counters(one.name)[0] for one in tuple(self._devices.values()) if one.source.collects
        }

    # Devices

    def _look_for_devices(self) -> None:
        for name, source in self._loaded().items():
            self._sources.setdefault(name, source)
        for source in self._sources.values():
            for device in source.devices():
                if device not in self._devices and device not in self._told:
                    self._devices[device] = _Watched(device, source, self._unit)

    def _loaded(self) -> dict[str, Source]:
        if self._given is not None:
            return {} if "given" in self._sources else {"given": Given(self._given)}
        found: dict[str, Source] = {}
        torch, jax, tensorflow, cupy = loaded_torch(), loaded_jax(), loaded_tensorflow(), loaded_cupy()
        if torch is not None and "torch" not in self._sources:
            found["torch"] = Torch(torch)
        if jax is not None and "jax" not in self._sources:
            found["jax"] = Jax(jax)
        if tensorflow is not None and "tensorflow" not in self._sources:
            found["tensorflow"] = TensorFlow(tensorflow)
        if cupy is not None and "cupy" not in self._sources:
            found["cupy"] = Cupy(cupy)
        return found

    # Judgements

    def _check(self) -> None:
        self._checked = self._steps
        self._look_for_devices()
        if not self._devices:
            if not self._told:
                self._say_once("nothing", "nothing to watch: no framework of this program uses a GPU")
            return
        found = []
        for one in self._devices.values():
            around = self._around(one)
            limit = self._limit if self._limit is not None else around.limit
            row = one.judge.health(free=around.free, total=around.total, others=around.others, limit=limit)
            if row is not None:
                one.last = health_of(one.name, row)
                found.append(one.last)
        several, number = len(self._devices) > 1, rank()
        for health in found:
            prefix = f"gpuheap/{health.device.replace(':', '')}/" if several else "gpuheap/"
            place = Place(prefix, several, number)
            for sink in tuple(self._sinks):
                try:
                    sink.write(health, place)
                except Exception as error:
                    self._remove(sink)
                    name = type(sink).__name__.lstrip("_")
                    _logger.warning("a sink of the watch failed and is left out: %s: %s", name, described(error))

    def _around(self, one: _Watched) -> Around:
        try:
            return one.source.around(one.name)
        except Exception as error:
            self._say_once(f"around {one.name}", f"the driver does not tell of `{one.name}`: {described(error)}")
            return Around()

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            _logger.warning("%s", text)

    def _add(self, sink: Sink) -> None:
        self._sinks.append(sink)

    def _remove(self, sink: Sink | None) -> None:
        if sink in self._sinks:
            self._sinks.remove(sink)

    # What was found

    @property
    def healths(self) -> dict[str, Health]:
        """The last judgement of each device."""
        return {one.name: one.last for one in self._devices.values() if one.last is not None}

    @property
    def health(self) -> Health | None:
        """The last judgement; of several devices that of a sick one, else of the one with most reserved."""
        return max(self.healths.values(), key=lambda one: (one.sick, one.reserved_bytes), default=None)

    def summary(self) -> str:
        """What is known, in a sentence for each device."""
        healths = self.healths
        if not healths:
            return f"{self._steps} steps, nothing judged"
        return "\n".join(
            f"step {health.step}{f' ({name})' if len(healths) > 1 else ''}: {health.sentence}"
            for name, health in healths.items()
        )

    # For trainers

    def hf_callback(self) -> Any:
        """A callback for Hugging Face's `Trainer(callbacks=[...])`. It starts and stops this watch."""
        return callbacks.hf_callback(self)

    def lightning_callback(self) -> Any:
        """A callback for Lightning's `Trainer(callbacks=[...])`; it also writes to the trainer's loggers."""
        return callbacks.lightning_callback(self)

    def keras_callback(self) -> Any:
        """A callback for Keras' `fit(callbacks=[...])`. It starts and stops this watch."""
        return callbacks.keras_callback(self)
