"""One step of a release: what it is called, and what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["NotApplicable", "Step"]


class NotApplicable(Exception):
    """Raised by a step that has nothing to do; the text says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step by name. `run` returns a remark (it may be empty), or raises."""

    name: str
    run: Callable[[], str]
