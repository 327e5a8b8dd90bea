"""What is allocated inside must be gone at the end, or be handed out: `gpuheap.scope(name)`."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import time
import types
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Literal, TypeVar, cast

from gpuheap import _tracker
from gpuheap._bytes import parse_bytes
from gpuheap._held import CLASSES, groups_of
from gpuheap._leaks import (
    BudgetExceeded,
    LeakError,
    LeakReport,
    LeakWarning,
    Survivor,
    history_sites,
    warn,
    with_holders,
)
from gpuheap._survivors import Census, census, reachable_storages
from gpuheap._tensors import Storage, live_tensors, loaded_torch, storages_of, tensor_text

__all__ = ["BudgetExceeded", "LeakError", "LeakReport", "LeakWarning", "Survivor", "scope"]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
_ASKED = 5
_HOLDER_SECONDS = 2.0


_innermost: ContextVar[scope | None] = ContextVar("gpuheap.scope", default=None)
_lock = threading.Lock()
_active: list[scope] = []
# Ended scopes that followed their thread, for as long as a scope of another thread may see what they left.
_ended: list[scope] = []


class scope:
    """What is allocated inside must be gone at the end, or be kept on purpose; a context manager and a decorator.

    At the end of the block, storages that were allocated inside and are still alive are survivors, each counted once
    however many tensors share it; those saved by autograd count, too. A collection of reference cycles comes before any
    report. Not survivors are: what was handed to `keep`; in a decorated function, what can be reached from the
    return value; what `allow` names; what is freed already and only waits for another stream. If the block ends with
    an exception, nothing is checked, and the exception goes on unchanged: its frames keep their tensors by nature.

    Scopes nest: what an inner scope has reported is not reported again by the outer one. They are per thread: memory
    that another thread allocates in a scope of its own is not counted. Memory of threads that are in no scope is,
    unless `track=True`.

    A decorated generator or coroutine function counts only what is allocated while it runs itself, not while it is
    suspended; yielded values are handed out. A plain `with` in such a function counts what others do meanwhile, too.

    Args:
        name: how reports call it.
        budget: the most memory, in bytes or as text (`"24GiB"`), that may be allocated inside beyond what was there at
            the beginning. The operation that passes it raises `BudgetExceeded`, with its memory already allocated:
            a soft limit, meant to lie below the card's size. What is allocated within one operation is not seen.
        on_leak: `"warn"` (a `LeakWarning`), `"raise"` (a `LeakError`), or a function that is given the `LeakReport`.
        allow: names of classes whose survivors are fine (`("gradients", "optimizer state")` for a first training
            step), or a function that says of a `Survivor` whether it is.
        tolerance: how many bytes may survive without a report.
        device: `None` for all accelerators, else a device as PyTorch writes it: `"cuda:0"`, `"cuda"`, `"cpu"`.
        track: follow every operation of this thread. Then sites are known, and threads are told apart.

    Cost: at the beginning and at the end one look at all Python objects, about 0.1 s per million. With a budget or
    `track=True` (and while a scope of another thread is open) also 25 to 35 µs for every operation, and
    `torch.compile` runs functions uncompiled inside.

    Raises:
        ValueError: `budget` or `tolerance` is not an amount of memory, or `on_leak` or `allow` is not known.
        LeakError: at the end, with `on_leak="raise"`.
        BudgetExceeded: from an operation inside, with a `budget`.

    Example:
        >>> import gpuheap
        >>> with gpuheap.scope("evaluation") as evaluation:
        ...     pass
        >>> evaluation.report is None
        True
    """

    report: LeakReport | None
    """After the end: what was found, or None if all was well or an exception has passed."""

    def __init__(
        self,
        name: str,
        budget: int | str | None = None,
        *,
        on_leak: Literal["warn", "raise"] | Callable[[LeakReport], object] = "warn",
        allow: Collection[str] | Callable[[Survivor], bool] = (),
        tolerance: int | str = 0,
        device: str | None = None,
        track: bool = False,
    ) -> None:
        """Checks the arguments; nothing is looked at before the block begins."""
        self.name = name
        self.budget = None if budget is None else parse_bytes(budget)
        self.report = None
        if not callable(on_leak) and on_leak not in ("warn", "raise"):
            raise ValueError(f'`on_leak` is "warn", "raise" or a function, not {on_leak!r}')
        if not callable(allow):
            allow = (allow,) if isinstance(allow, str) else tuple(allow)
            unknown = [group for group in allow if group not in CLASSES]
            if unknown:
                raise ValueError(f"`allow` knows {', '.join(CLASSES)}; not {unknown[0]!r}")
        self._on_leak: Literal["warn", "raise"] | Callable[[LeakReport], object] = on_leak
        self._allow = allow
        self._tolerance = parse_bytes(tolerance)
        self._device = device
        self._track = track
        self._reset()

    def _reset(self) -> None:
        self._before: Census | None = None
        self._after: Census | None = None
        self._allocations: _tracker.Allocations | None = None
        self._mode: Any = None
        self._kept: dict[int, Any] = {}
        self._token: Token[scope | None] | None = None
        self._outer: scope | None = None
        self._thread = 0
        self._began = 0.0
        self._foreign: list[_tracker.Allocations] = []
        self._sites: dict[int, str | None] = {}
        self._slices: dict[int, Any] | None = None
        self._open = False

    def _wanted(self, device: str) -> bool:
        if self._device is None:
            return device != "cpu"
        return device == self._device or device.partition(":")[0] == self._device

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes allocated inside and alive at once; None unless the operations are followed."""
        return None if self._allocations is None else self._allocations.peak

    def keep(self, value: _T) -> _T:
        """Whatever tensors can be reached from `value` are meant to outlive this scope. Returns `value`.

        Only identities are noted: `keep` itself keeps nothing alive.
        """
        torch = loaded_torch()
        if torch is not None:
            self._kept.update(reachable_storages(torch, value))
        return value

    # The block

    def __enter__(self) -> scope:
        """Begins."""
        if self._open:
            raise RuntimeError(f"scope `{self.name}` is open already: make one for each block")
        self._reset()
        self.report = None
        self._thread = threading.get_ident()
        torch = loaded_torch()
        with _lock:
            others = any(one._thread != self._thread for one in _active)
            _active.append(self)
            self._open = True
            self._began = time.monotonic()
        try:
            if torch is not None and (self.budget is not None or self._track or others):
                self._follow(torch)
            elif torch is not None:
                self._before = census(torch, self._wanted)
        except BaseException:
            self._close()
            raise
        self._outer = _innermost.get()
        self._token = _innermost.set(self)
        return self

    def _follow(self, torch: Any) -> None:
        limit = self.budget if self.budget is not None else 0
        exceeded = None if self.budget is None else lambda taken: BudgetExceeded(self.name, limit, taken)
        self._allocations = _tracker.Allocations(self._wanted, exceeded, limit)
        self._mode = _tracker.begin(torch, self._allocations)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Ends, and checks unless an exception passes."""
        self._leave()
        if kind is None:
            self._check(None)
        else:
            self._forget()

    def _leave(self) -> None:
        if self._token is not None:
            # Ended in another context: a generator that was closed elsewhere.
            with suppress(ValueError):
                _innermost.reset(self._token)
            self._token = None
        self._close()

    def _close(self) -> None:
        if self._mode is not None and self._allocations is not None:
            mode, self._mode = self._mode, None
            _tracker.end(mode, self._allocations)
        with _lock:
            self._open = False
            self._foreign = [
                other._allocations
                for other in (*_active, *_ended)
                if other._thread != self._thread and other._allocations is not None
            ]
            if self in _active:
                _active.remove(self)
            if self._allocations is not None and any(one._thread != self._thread for one in _active):
                _ended.append(self)
            if not _active:
                _ended.clear()

    def _forget(self) -> None:
        self._before = self._after = None
        self._slices = None
        self._kept = {}
        self._foreign = []

    # The check

    def _check(self, code: types.CodeType | None) -> None:
        try:
            report = self._find()
        finally:
            self._forget()
        if report is None:
            return
        self.report = report
        if callable(self._on_leak):
            self._on_leak(report)
        elif self._on_leak == "raise":
            raise LeakError(report)
        else:
            warn(LeakWarning(report), code)

    def _find(self) -> LeakReport | None:
        torch = loaded_torch()
        if torch is None:
            return None
        alive = self._alive(torch)
        before_collection = sum(alive.values())
        if before_collection <= self._tolerance:
            return None
        gc.collect()
        alive = self._alive(torch)
        collected = before_collection - sum(alive.values())
        if not alive:
            return None
        survivors = self._describe(torch, alive)
        taken = sum(one.bytes for one in survivors)
        if not survivors or taken <= self._tolerance:
            return None
        # An outer scope need not say it again.
        if self._outer is not None:
            self._outer._kept.update(self._weak(alive))
        return LeakReport(self.name, tuple(survivors), taken, max(collected, 0))

    def _weak(self, alive: dict[int, int]) -> dict[int, Any]:
        if self._allocations is not None:
            return {key: one.weak for key, one in self._allocations.seen.items() if key in alive}
        return {key: weak for key, weak in self._after.weak.items() if key in alive} if self._after else {}

    def _alive(self, torch: Any) -> dict[int, int]:
        """Bytes, by key, of what was allocated inside, is alive, and was not kept."""
        kept = {key for key, weak in self._kept.items() if not weak.expired()}
        if self._slices is not None:
            now = {key: one[1] for key, one in self._slices.items() if not one[0].expired()}
            return {key: taken for key, taken in now.items() if key not in kept}
        if self._allocations is not None:
            live = self._allocations.live()
            self._sites = {key: one.site for key, one in live.items()}
            return {key: one.bytes for key, one in live.items() if key not in kept}
        after = self._after = census(torch, self._wanted)
        known = self._before.storages if self._before is not None else {}
        foreign = {key for other in self._foreign for key, one in list(other.seen.items()) if not one.weak.expired()}
        alive = {}
        for key, storage in after.storages.items():
            old = known.get(key)
            # A storage can be resized in place; what it has grown by is new.
            grown = storage.bytes - (old.bytes if old is not None else 0)
            if grown > 0 and key not in kept and key not in foreign:
                alive[key] = grown
        return alive

    def _describe(self, torch: Any, alive: dict[int, int]) -> list[Survivor]:
        tensors = live_tensors(torch)
        groups = groups_of(torch, tensors)
        best: dict[int, tuple[str, str, Storage | None]] = {}
        for tensor in tensors:
            for one in storages_of(torch, tensor):
                if one.key in alive:
                    group = groups.get(id(tensor), "other tensors")
                    known = best.get(one.key)
                    if known is None or CLASSES.index(group) < CLASSES.index(known[0]):
                        best[one.key] = (group, tensor_text(torch, tensor), one)
        del tensors, groups
        history = history_sites(torch, [entry[2] for entry in best.values() if entry[2] is not None])
        found = []
        for key, taken in sorted(alive.items(), key=lambda entry: -entry[1]):
            group, text, storage = best.get(key, ("activations", "no tensor in Python", None))
            site = self._sites.get(key) or (history.get(storage.address) if storage is not None else None)
            survivor = Survivor(text, taken, group, site, ())
            allowed = self._allow(survivor) if callable(self._allow) else group in self._allow
            if not allowed:
                found.append((survivor, storage))
        deadline = time.monotonic() + _HOLDER_SECONDS
        return [
            with_holders(survivor, storage, deadline) if position < _ASKED else survivor
            for position, (survivor, storage) in enumerate(found)
        ]

    # Decorated functions

    def __call__(self, function: _F) -> _F:
        """Decorates a function: each call is a block of its own, and what it returns is kept."""
        if inspect.isasyncgenfunction(function):
            raise TypeError("an async generator cannot be a scope: open one with `with` inside it")
        settings = self._copy

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                return await _drive(settings(), function(*args, **kwargs))

            return cast(_F, coroutine)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                return (yield from _slices(settings(), function(*args, **kwargs), hand_out=True))

            return cast(_F, generator)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            block = settings()
            block.__enter__()
            try:
                result = function(*args, **kwargs)
            except BaseException:
                block._leave()
                block._forget()
                raise
            block._leave()
            block.keep(result)
            # The arguments are the caller's to keep; here they would only be found again.
            del args, kwargs
            block._check(None)
            return result

        return cast(_F, call)

    def _copy(self) -> scope:
        return scope(
            self.name,
            self.budget,
            on_leak=self._on_leak,
            allow=self._allow,
            tolerance=self._tolerance,
            device=self._device,
            track=self._track,
        )

    # Generators and coroutines: one slice from each resumption to the next suspension

    def _begin_slice(self) -> None:
        slices, kept = self._slices, self._kept
        self.__enter__()
        self._slices, self._kept = slices, kept

    def _end_slice(self) -> None:
        torch = loaded_torch()
        slices = self._slices if self._slices is not None else {}
        self._slices = None
        self._leave()
        if torch is not None:
            alive = self._alive(torch)
            weak = self._weak(alive)
            slices.update((key, (weak[key], taken)) for key, taken in alive.items() if key in weak)
        self._slices = slices


@types.coroutine
def _drive(block: scope, coroutine: Any) -> Generator[Any, Any, Any]:
    code: types.CodeType | None = getattr(coroutine, "cr_code", None)
    return (yield from _slices(block, coroutine, hand_out=False, code=code))


def _slices(
    block: scope, inner: Any, *, hand_out: bool, code: types.CodeType | None = None
) -> Generator[Any, Any, Any]:
    """Runs a generator or coroutine with the scope open while it runs, and only then."""
    sites: dict[int, str | None] = {}

    def resume(step: Callable[[Any], Any], value: Any) -> Any:
        block._begin_slice()
        try:
            return step(value)
        finally:
            block._end_slice()
            sites.update(block._sites)

    step: Callable[[Any], Any] = inner.send
    value: Any = None
    while True:
        try:
            handed = resume(step, value)
        except StopIteration as stop:
            result = stop.value
            break
        except BaseException:
            block._forget()
            raise
        if hand_out:
            block.keep(handed)
        try:
            value = yield handed
            step = inner.send
        except GeneratorExit:
            inner.close()
            block._forget()
            raise
        except BaseException as error:
            step, value = inner.throw, error
        finally:
            del handed
    del value
    block.keep(result)
    block._sites = sites
    block._check(code)
    return result
