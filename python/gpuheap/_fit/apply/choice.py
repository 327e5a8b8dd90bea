"""Reading what a lever says: its values, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuheap._fit.apply.target import LeverError

__all__ = ["fraction", "one_of", "whole"]


def one_of(lever: Mapping[str, Any], key: str, choices: Sequence[str], default: str | None = None) -> str:
    """A value that is one of some names."""
    value = lever.get(key, default)
    if value not in choices:
        raise LeverError(
            f"the lever `{lever['lever']}` has {key} `{value}`",
            f"It can be {', '.join(f'`{one}`' for one in choices)}.",
        )
    return str(value)


def whole(lever: Mapping[str, Any], key: str, least: int, default: int | None = None) -> int:
    """A whole number that is not too small."""
    value = lever.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LeverError(
            f"the lever `{lever['lever']}` has {key} `{value}`", f"Give a whole number of at least {least}."
        )
    return value


def fraction(lever: Mapping[str, Any], key: str) -> float:
    """A number from 0 to 1."""
    value = lever.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise LeverError(f"the lever `{lever['lever']}` has {key} `{value}`", "Give a number from 0 to 1.")
    return float(value)
