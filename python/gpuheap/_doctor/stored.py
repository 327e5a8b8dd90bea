"""Exceptions that are stored somewhere, and the tensors in the frames of their tracebacks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Site, is_user_code
from gpuheap._doctor.within import tensors_within
from gpuheap._exceptions import _frames, _handled, _running
from gpuheap._frames import local_items
from gpuheap._objects import class_name, instance_dict, is_instance, mro
from gpuheap._tensors import storages_of
from gpuheap.holders import holders

__all__ = ["find"]

_SECONDS = 20.0
_SHOWN = 3


def find(torch: Any, wanted: Callable[[str], bool], owned: frozenset[int], kept: set[int]) -> list[Finding]:
    """One finding for each stored exception that keeps tensors, the largest first.

    Args:
        torch: the module.
        wanted: which devices count.
        owned: keys of what is the model's: it lives anyway.
        kept: keys of what other findings are about.
    """
    handled = {id(error) for error in _handled()}
    running = _running()
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if BaseException in mro(kind)}
    errors = [value for value in objects if type(value) in kinds and id(value) not in handled]
    del objects
    found: list[tuple[int, BaseException, Site | None]] = []
    seen: set[int] = set()
    for error in sorted(errors, key=lambda one: one is not getattr(sys, "last_value", None)):
        sizes: dict[int, int] = {}
        site: Site | None = None
        traceback = error.__traceback__
        for frame, line in zip(_frames(traceback), _lines(error), strict=False):
            if id(frame) in running:
                continue
            before = len(sizes)
            for key, size in _sizes(torch, frame, wanted):
                if key not in owned and key not in kept and key not in seen:
                    sizes[key] = size
            if len(sizes) > before and is_user_code(frame.f_code):
                site = Site(frame.f_code.co_filename, line, frame.f_code.co_name)
        del traceback
        if sizes:
            seen.update(sizes)
            found.append((sum(sizes.values()), error, site))
    errors.clear()
    running.clear()
    found.sort(key=lambda entry: -entry[0])
    return [_finding(*found[position]) for position in range(min(_SHOWN, len(found)))]


def _lines(error: BaseException) -> list[int]:
    lines = []
    traceback = error.__traceback__
    while traceback is not None:
        lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return lines


def _sizes(torch: Any, frame: FrameType, wanted: Callable[[str], bool]) -> list[tuple[int, int]]:
    found = []
    for name, value in local_items(frame):
        # What a method's frame has as `self` lives elsewhere, as a rule.
        if name == "self" or (instance_dict(value) is not None and not is_instance(value, torch.Tensor)):
            continue
        for tensor in tensors_within(torch, value, 2):
            found += [(one.key, one.bytes) for one in storages_of(torch, tensor) if one.bytes and wanted(one.device)]
    return found


def _finding(size: int, error: BaseException, site: Site | None) -> Finding:
    name = class_name(type(error))
    held = [one.path for one in holders(error, limit=2, budget=_SECONDS) if one.root != "unseen"][:2]
    last = any(path.startswith("sys.last_") for path in held)
    return Finding(
        kind="stored_exception",
        title=f"a stored {name} keeps {bytes_text(size)} of tensors in the frames of its traceback",
        bytes=size,
        site=site,
        holders=tuple(held),
        evidence=("the local variables of calls that failed live as long as the traceback",),
        remedy="`gpuheap.release()` drops what Python keeps of the last error."
        if last
        else "Keep the text of a caught exception, not the exception; or clear its frames: "
        "`traceback.clear_frames(error.__traceback__)`.",
    )
