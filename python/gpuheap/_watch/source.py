"""Where counters come from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from gpuheap.errors import Error

__all__ = ["Around", "Counters", "Given", "Source"]

Counters = tuple[int, "int | None", int, "int | None", "int | None", int, int]
"""Bytes allocated, blocks, bytes reserved, peaks of active and of reserved bytes, retries, OOMs: as judged."""


class Around(NamedTuple):
    """What the driver says of a device, in bytes; None what it does not say."""

    free: int | None = None
    total: int | None = None
    others: int | None = None
    limit: int | None = None
    """The most that the allocator may take, if that is less than the device has."""


class Source(Protocol):
    """An allocator, or several of one kind."""

    collects: bool
    """Whether Python's collector can give its memory back, and it may be asked in the middle of a collection."""
    paced: bool
    """Whether asking may be left out after some steps, to save time."""

    def devices(self) -> list[str]:
        """The devices that are in use now. Starts none."""
        ...

    def counters(self, device: str) -> Counters:
        """The counters now. Called after every step."""
        ...

    def around(self, device: str) -> Around:
        """What surrounds the allocator. Called now and then."""
        ...


_COUNTERS = ("allocated", "blocks", "reserved", "peak_active", "peak_reserved", "retries", "ooms")
_AROUND = ("free", "total", "others", "limit")
_KEYS = (*_COUNTERS, *_AROUND)


class Given:
    """A function of the user's: it returns counters by name, or such a mapping for each device by its name."""

    collects = False
    paced = False

    def __init__(self, function: Callable[[], Mapping[str, Any]]) -> None:
        """Does not call it yet."""
        self._function = function
        self._last: dict[str, dict[str, int | None]] = {}
        self._fresh = False

    def devices(self) -> list[str]:
        """Those of the last answer."""
        if not self._last:
            self._last = self._ask()
            # Each answer is used once: a function may count its calls.
            self._fresh = True
        return list(self._last)

    def counters(self, device: str) -> Counters:
        """Of the first device anew, of the others what was said then."""
        if device == next(iter(self._last), None):
            if not self._fresh:
                self._last = self._ask()
            self._fresh = False
        row = self._last[device]
        allocated = row["allocated"] or 0
        reserved = row.get("reserved")
        return (
            allocated,
            row.get("blocks"),
            allocated if reserved is None else reserved,
            row.get("peak_active"),
            row.get("peak_reserved"),
            row.get("retries") or 0,
            row.get("ooms") or 0,
        )

    def around(self, device: str) -> Around:
        """As it was said with the last counters."""
        row = self._last[device]
        return Around(row.get("free"), row.get("total"), row.get("others"), row.get("limit"))

    def _ask(self) -> dict[str, dict[str, int | None]]:
        answer = self._function()
        if not isinstance(answer, Mapping):
            raise _unusable("counters", f"it returned `{type(answer).__name__}`")
        if not answer:
            raise _unusable("counters", "its mapping is empty")
        rows = {"memory": answer} if "allocated" in answer else answer
        return {str(device): _row(f"the counters of `{device}`", row) for device, row in rows.items()}


_MOST = (1 << 64) - 1


def _row(what: str, row: object) -> dict[str, int | None]:
    """Counters that can be used: whole numbers, not negative; None for what is not known."""
    if not isinstance(row, Mapping):
        raise _unusable(what, f"they are `{type(row).__name__}`")
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        raise _unusable(what, f"it does not know `{unknown[0]}`")
    if row.get("allocated") is None:
        raise _unusable(what, "`allocated` is missing")
    found: dict[str, int | None] = {}
    for key, value in row.items():
        try:
            found[key] = None if value is None else operator.index(value)
        except TypeError:
            raise _unusable(what, f"`{key}` is {value!r}, which is no whole number") from None
        if not 0 <= (found[key] or 0) <= _MOST:
            raise _unusable(what, f"`{key}` is {value}, which no counter is")
    return found


def _unusable(what: str, cause: str) -> Error:
    return Error(
        f"Failed to read {what} from `source`\n  cause: {cause}",
        f"return a mapping with `allocated` and, as far as they are known, {', '.join(_KEYS[1:])}",
    )
