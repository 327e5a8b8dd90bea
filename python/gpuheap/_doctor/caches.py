"""Caches on methods (`functools.lru_cache`) that keep models alive which nothing else has any more."""

from __future__ import annotations

import functools
import gc
from typing import Any

from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import function_site
from gpuheap._doctor.subject import Subject
from gpuheap._objects import class_name, is_instance
from gpuheap._tensors import storages_of
from gpuheap.holders import holders

__all__ = ["find"]

_SECONDS = 20.0
_MOST_KEYS = 10_000


def find(subject: Subject) -> list[Finding]:
    """One finding for each cache."""
    torch = subject.torch
    inside = {id(module) for _, module in subject.modules()}
    found = []
    objects = gc.get_objects()
    wrappers = [value for value in objects if type(value) is functools._lru_cache_wrapper]
    del objects
    for wrapper in wrappers:
        modules = [one for one in _keys(wrapper) if is_instance(one, torch.nn.Module) and id(one) not in inside]
        kept: list[tuple[str, int]] = []
        while modules:
            module = modules.pop()
            size = _size(torch, module)
            # A variable of the program that has it is reason enough to keep it.
            paths = list(holders(module, limit=4, budget=_SECONDS)) if size else []
            known = [holder for holder in paths if holder.root != "unseen"]
            if known and all("lru_cache" in holder.path or holder.kind == "cache" for holder in known):
                kept.append((class_name(type(module)), size))
            del module
        if kept:
            site = function_site(getattr(wrapper, "__wrapped__", None))
            name = site.function if site is not None else "?"
            found.append(
                Finding(
                    kind="lru_cache_on_method",
                    title=f"`lru_cache` on the method `{name}` alone keeps {len(kept)} modules alive",
                    bytes=sum(size for _, size in kept),
                    site=site,
                    holders=(f"lru_cache of {site}",),
                    evidence=(
                        "a cache on a method has `self` in its keys: " + ", ".join(sorted({one for one, _ in kept})),
                    ),
                    remedy="Keep the cache on the instance (a dictionary in `self`, or `functools.cached_property`), "
                    "or call "
                    f"`{name}.cache_clear()` when the model goes.",
                )
            )
    return found


def _keys(wrapper: Any) -> list[Any]:
    """What the keys of a cache hold, each object once."""
    seen: dict[int, Any] = {}
    level = [one for one in gc.get_referents(wrapper) if type(one) is dict]
    for _ in range(3):
        following: list[Any] = []
        for one in level:
            # Keys are the arguments, in a list if there are several.
            parts: list[Any] = list(one) if type(one) in (dict, tuple) or is_instance(one, list) else []
            for part in parts[:_MOST_KEYS]:
                if id(part) not in seen:
                    seen[id(part)] = part
                    following.append(part)
        level = following
    return list(seen.values())


def _size(torch: Any, module: Any) -> int:
    inside = Subject(torch, [module])
    return sum({one.key: one.bytes for *_, tensor in inside.tensors() for one in storages_of(torch, tensor)}.values())
