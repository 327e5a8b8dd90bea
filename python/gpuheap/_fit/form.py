"""Whether a plan that was read is one: a file may be cut, edited, or of something else."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuheap.errors import Error

__all__ = ["check", "read"]

_SCHEMA = "gpuheap.fit/1"
_HINT = "Write one with `gpuheap fit --json`."
_MAPPINGS = ("peak", "baseline", "source", "batch")
_LISTS = ("front", "notes", "phases", "unknown")
_NUMBERS = ("budget_bytes", "smallest_budget_bytes", "step_us", "context_bytes", "gpus")
_PEAK = ("allocated_bytes", "reserved_bytes", "device_bytes", "low", "high", "step_us")
_LEVER = ("saves_bytes", "costs_us", "gpus", "bytes")


def check(found: Any) -> None:
    """Raise an Error that says what is missing or wrong.

    Raises:
        Error: it is no plan.
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("plan"), list) or "verdict" not in found:
        raise Error("this is no plan: it has no `verdict` and no list `plan`", _HINT)
    if found.get("schema", _SCHEMA) != _SCHEMA:
        raise Error(f"this plan is written as {found['schema']!r}, and this version reads {_SCHEMA!r}", _HINT)
    for name in _MAPPINGS:
        _require(isinstance(found.get(name, {}), Mapping), f"`{name}`")
    for name in _LISTS:
        _require(isinstance(found.get(name, []), list), f"`{name}`")
    _numbers(found, _NUMBERS, "")
    for lever in found["plan"]:
        _require(isinstance(lever, Mapping) and isinstance(lever.get("lever"), str), "a lever of `plan`")
        _numbers(lever, _LEVER, "of a lever ")
    for name in ("peak", "baseline"):
        peak = found.get(name, {})
        _numbers(peak, _PEAK, f"of `{name}` ")
        holders = peak.get("holders", [])
        _require(isinstance(holders, list), f"`holders` of `{name}`")
        for holder in holders:
            known = isinstance(holder, Mapping) and _is_number(holder.get("bytes")) and "class" in holder
            _require(known, f"a holder of `{name}`")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A plan from a file.

    Raises:
        Error: it cannot be read, or is no plan.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise Error(f"{path} is no plan: it is no JSON: {error}") from error
    except RecursionError:
        raise Error(f"{path} is no plan: its lists are too deep") from None
    try:
        check(found)
    except Error as error:
        raise Error(f"{path}: {error.message}", error.hint) from None
    return dict(found)


def _numbers(values: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        value = values.get(name, 0)
        # Of these only the smallest budget is null where there is none.
        is_left_out = value is None and name == "smallest_budget_bytes"
        _require(is_left_out or _is_number(value), f"`{name}` {where}".rstrip())


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        # A whole number that no float comes up to.
        return False


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Error(f"this is no plan: {what} is not what a plan has there", _HINT)
