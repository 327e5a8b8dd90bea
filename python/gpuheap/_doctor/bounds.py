"""Whether what keeps a tensor has a bound of its own: a `deque(maxlen=...)`, an `lru_cache(maxsize=...)`."""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from typing import Any

from gpuheap._frames import is_own_code
from gpuheap._objects import is_instance
from gpuheap._tensors import live_tensors, storages_of

__all__ = ["bound_of"]

_LEVELS = 4
_WIDTH = 64
_NOT_FOLLOWED = (types.ModuleType, types.FrameType, type)


def bound_of(torch: Any, key: int) -> int | None:
    """The most items that the nearest bounded container of a storage's tensors can have; None without one."""
    level = [tensor for tensor in live_tensors(torch) if any(one.key == key for one in storages_of(torch, tensor))]
    seen: set[int] = set()
    for _ in range(_LEVELS):
        if not level:
            return None
        own = {id(level), id(seen)}
        following: list[Any] = []
        for holder in gc.get_referrers(*level[:_WIDTH]):
            if id(holder) in own or id(holder) in seen or _ours(holder):
                continue
            if is_instance(holder, deque):
                length: int | None = deque.maxlen.__get__(holder)
                if length is not None:
                    return length
            if type(holder) is functools._lru_cache_wrapper:
                size: int | None = holder.cache_parameters()["maxsize"]
                if size is not None:
                    return size
            if any(is_instance(holder, kind) for kind in _NOT_FOLLOWED):
                continue
            if type(holder) is dict and "__builtins__" in holder:
                continue
            seen.add(id(holder))
            following.append(holder)
        level = following
    return None


def _ours(holder: Any) -> bool:
    return type(holder) is types.FrameType and is_own_code(holder.f_code)
