"""From the largest batch that fits to what a training run needs: accumulation and learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Plan", "make_plan", "scale_rate"]

# A batch that makes the effective size exact is taken if it is not smaller than this part of the largest possible.
_WORTH = 0.75


@dataclass(frozen=True, slots=True)
class Plan:
    """How to come to an effective batch."""

    batch: int
    """For each rank and each pass."""
    accumulation: int
    """Passes between two optimizer steps."""
    ranks: int

    @property
    def effective(self) -> int:
        """Samples that an optimizer step sees."""
        return self.batch * self.accumulation * self.ranks


def make_plan(largest: int, multiple: int, ranks: int, target: int | None) -> Plan:
    """Plan for an effective batch of ``target``, exactly if that costs at most a quarter of the batch."""
    if target is None:
        return Plan(largest, 1, ranks)
    share = target / ranks
    passes = max(math.ceil(share / largest), 1)
    best = min(largest, share)
    for accumulation in range(passes, math.floor(share / multiple) + 1):
        batch, rest = divmod(target, ranks * accumulation)
        if batch < _WORTH * best:
            break
        if rest == 0 and batch % multiple == 0 and batch <= largest:
            return Plan(batch, accumulation, ranks)
    batch = max(round(share / passes / multiple), 1) * multiple
    return Plan(min(batch, largest), passes, ranks)


def scale_rate(rate: float, base: int, effective: int, optimizers: tuple[str, ...]) -> tuple[float | None, str]:
    """Scale a learning rate that was right for an effective batch of ``base``; say by which rule.

    Linear for SGD, by the square root for Adam and its kin: what is usual, not a law. None if neither is known to hold.
    """
    if effective == base:
        return rate, f"unchanged: {base} samples a step, as before"
    ratio = effective / base
    names = " and ".join(optimizers)
    if optimizers and all(_is_sgd(name) for name in optimizers):
        return rate * ratio, f"linear for {names}: {rate:g} * {effective} / {base}; a suggestion, warm-up helps"
    if optimizers and all(_is_adaptive(name) for name in optimizers):
        return rate * math.sqrt(ratio), f"square root for {names}: {rate:g} * sqrt({effective} / {base}); a suggestion"
    what = f"of {names}" if optimizers else "without a known optimizer"
    linear, root = rate * ratio, rate * math.sqrt(ratio)
    return None, f"no usual rule for the learning rate {what}: linear would be {linear:g}, square root {root:g}"


def _is_sgd(name: str) -> bool:
    return "sgd" in name.lower() and "adam" not in name.lower()


def _is_adaptive(name: str) -> bool:
    known = ("adam", "lamb", "adafactor", "rmsprop", "adagrad")
    return any(part in name.lower() for part in known)
