"""Exceptions that nobody handles any more, and the frames that they keep."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FrameType, TracebackType
from typing import Any

from gpuheap._frames import handled_exceptions, local_items
from gpuheap._objects import is_instance, mro
from gpuheap._tensors import loaded_torch, storages_of

__all__ = ["drop_stored", "handled_bytes"]

_LAST = ("last_exc", "last_type", "last_value", "last_traceback")
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _related(errors: list[BaseException]) -> list[BaseException]:
    """The exceptions, and all that they were raised from or while handling."""
    seen: dict[int, BaseException] = {}
    queue = list(errors)
    while queue:
        error = queue.pop()
        if id(error) in seen:
            continue
        seen[id(error)] = error
        queue += [other for other in (error.__context__, error.__cause__) if other is not None]
    return list(seen.values())


def _handled() -> list[BaseException]:
    return _related(handled_exceptions())


def _frames(traceback: TracebackType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def handled_bytes() -> int:
    """Bytes of the tensors in the frames of exceptions that are being handled, each storage once."""
    torch = loaded_torch()
    if torch is None:
        return 0
    found: dict[int, int] = {}
    running = _running()
    for error in _handled():
        for frame in _frames(error.__traceback__):
            if id(frame) in running:
                continue
            for _, value in local_items(frame):
                if is_instance(value, torch.Tensor):
                    found.update((storage.key, storage.bytes) for storage in storages_of(torch, value))
    return sum(found.values())


def _running() -> set[int]:
    running: set[int] = set()
    frames = sys._current_frames()
    for innermost in frames.values():
        frame: FrameType | None = innermost
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
    frames.clear()
    return running


def _suspended(objects: list[Any]) -> set[int]:
    """The frames of generators and coroutines that can go on: to clear one would end it."""
    frames: set[int] = set()
    for value in objects:
        for attribute in ("gi_frame", "cr_frame", "ag_frame"):
            if type(value).__name__ in ("generator", "coroutine", "async_generator"):
                frame = getattr(value, attribute, None)
                if frame is not None:
                    frames.add(id(frame))
    return frames


def drop_stored(*, everywhere: bool) -> tuple[int, int]:
    """Drops `sys.last_exc` and its like, and clears their frames: local variables of calls that have failed.

    The exceptions themselves stay with whoever holds them, with their tracebacks and line numbers; the local variables
    of the calls that failed are gone. Frames that still run or can go on (suspended generators) are left alone.

    Args:
        everywhere: the frames of all exceptions that are alive, wherever they are stored.

    Returns:
        How many exceptions had frames, and how many frames were cleared.
    """
    handled = {id(error) for error in _handled()}
    tracebacks: list[TracebackType] = []
    for name in _LAST:
        value = getattr(sys, name, None)
        if id(value) in handled or (name == "last_traceback" and _is_of_handled(value)):
            continue
        if isinstance(value, TracebackType):
            tracebacks.append(value)
        elif isinstance(value, BaseException) and value.__traceback__ is not None:
            tracebacks.append(value.__traceback__)
        if hasattr(sys, name):
            delattr(sys, name)
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if BaseException in mro(kind)}
    errors = [value for value in objects if everywhere and type(value) in kinds and id(value) not in handled]
    kept = {id(frame) for error in _handled() for frame in _frames(error.__traceback__)}
    kept |= _running()
    tracebacks += [error.__traceback__ for error in errors if error.__traceback__ is not None]
    frames: dict[int, FrameType] = {}
    for traceback in tracebacks:
        frames.update((id(frame), frame) for frame in _frames(traceback) if id(frame) not in kept)
    if any(frame.f_code.co_flags & _SUSPENDABLE for frame in frames.values()):
        for identity in _suspended(objects):
            frames.pop(identity, None)
    del objects
    cleared = 0
    for frame in frames.values():
        try:
            frame.clear()
            # Up to Python 3.12 a debugger's look at the frame has left a copy of its locals there; this empties it.
            local_items(frame)
            cleared += 1
        except RuntimeError:  # it has begun to run in another thread
            continue
    return len({id(traceback) for traceback in tracebacks}), cleared


def _is_of_handled(value: Any) -> bool:
    return any(error.__traceback__ is value for error in _handled())
