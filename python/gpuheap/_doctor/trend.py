"""Warm-up told from growth: what of each step is still alive at the end?

Being alive at the end proves nothing, and neither does a sum that rises. A leak leaves something behind in every part
of the time after the warm-up alike; a buffer that has filled has nothing left of the first part; batches that grow by
plan leave nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

__all__ = ["Trend", "Window", "rises", "slope", "trend_of"]

_FEWEST = 3
_BALANCE = 0.5


@dataclass(frozen=True)
class Window:
    """The steps that are judged: after the warm-up, before those whose results may still be in use."""

    steps: int

    @property
    def first(self) -> int:
        """The first judged step; the warm-up lies before it."""
        return max(2, self.steps // 5)

    @property
    def end(self) -> int:
        """The first step after the judged ones."""
        tail = max(1, (self.steps - self.first) // 10)
        return max(self.first, self.steps - 1 - tail)

    @property
    def length(self) -> int:
        """How many steps are judged."""
        return self.end - self.first

    @property
    def enough(self) -> bool:
        """Whether that is enough for a judgement."""
        return self.length >= _FEWEST

    def third(self, step: int) -> int:
        """In which third of the judged steps `step` lies."""
        return (step - self.first) * 3 // self.length

    def __contains__(self, step: object) -> bool:
        """Whether the step is judged."""
        return isinstance(step, int) and self.first <= step < self.end


@dataclass(frozen=True)
class Trend:
    """What one place leaves behind."""

    verdict: Literal["grows", "undecided", "bounded", "none"]
    """`undecided`: something has outlived its step, but not in a way that shows where it leads."""
    bytes_per_step: float
    """On average over the judged steps."""
    survivors: int
    """How many storages of the judged steps are alive at the end."""
    steps_with: int
    """How many of the judged steps have left some."""
    balance: float
    """The fewest of a third by the most of a third."""
    judged: int
    """How many steps were judged."""

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """How sure a verdict of growth is."""
        if self.judged >= 12 and self.balance >= 0.8:
            return "high"
        return "medium" if self.judged >= 6 else "low"


def trend_of(window: Window, births: Mapping[int, Sequence[int]], curve: Sequence[int], oldest_freed: int = 0) -> Trend:
    """Judges one place.

    Args:
        window: the judged steps.
        births: by the step of their birth, the bytes of the storages that are alive at the end.
        curve: bytes of this place alive at each step's end.
        oldest_freed: the largest age, in steps, at which something of this place has been freed after the warm-up.
    """
    thirds = [0, 0, 0]
    taken = survivors = steps_with = 0
    recent = sum(len(sizes) for step, sizes in births.items() if step >= window.first and step < window.steps - 1)
    for step, sizes in births.items():
        if window.enough and step in window and sizes:
            thirds[window.third(step)] += len(sizes)
            taken += sum(sizes)
            survivors += len(sizes)
            steps_with += 1
    balance = min(thirds) / max(thirds) if max(thirds) else 0.0
    rate = taken / window.length if window.length else 0.0
    verdict: Literal["grows", "undecided", "bounded", "none"] = "none"
    if min(thirds) and balance >= _BALANCE and slope(curve[window.first :]) > 0:
        # What is freed after a fixed number of steps has a bound, even if it is longer than what was judged.
        fixed = oldest_freed >= 2 and oldest_freed >= window.length and slope(curve[-window.steps // 8 :]) <= 0
        verdict = "bounded" if fixed else "grows"
    elif recent:
        verdict = "bounded" if oldest_freed >= 2 else "undecided"
    return Trend(verdict, rate, survivors, steps_with, balance, window.length)


def slope(curve: Sequence[float]) -> float:
    """The median of the slopes between all pairs: a step up, or a few outliers, do not change it."""
    slopes = [
        (curve[late] - curve[early]) / (late - early)
        for early in range(len(curve))
        for late in range(early + 1, len(curve))
    ]
    return median(slopes) if slopes else 0.0


def rises(window: Window, values: Sequence[float]) -> bool:
    """Whether a value that is known at each step's end rises in every third of the judged steps, and still does."""
    if not window.enough or len(values) < window.steps:
        return False
    if values[window.steps - 1] <= values[window.steps - 1 - max(1, window.steps // 8)]:
        return False
    marks = [values[window.first + window.length * part // 3 - (1 if part == 3 else 0)] for part in range(4)]
    return all(later > earlier for earlier, later in pairwise(marks)) and slope(values[window.first : window.end]) > 0
