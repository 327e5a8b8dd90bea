"""Which batch size to try next: solved from what the runs so far have measured, then verified by two of them.

The most memory that a step holds is, phase by phase, a straight line in the batch size, and so their maximum has kinks:
a line through two small sizes says nothing about a large one. Each phase is measured for itself, and the pair of runs
nearest to the answer is used. What the allocator reserves for that is more by some percent that differ from size to
size, without an order; so the end of the search is two runs and no calculation: one that fits, and one at most 3 %
larger that does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FIRST_STEP", "FITS", "MOST_PROBES", "Probe", "Search"]

MOST_PROBES = 6
FITS = "fits"
# After the name of a phase, for that of the first step.
FIRST_STEP = ", first step"
# The step from the size that fits to the one that must not, as a part of the size.
_STEP = 0.03
# How far beyond the largest size that was run the next run may go.
_LEAP = 32
# Of a leap calculated from a single run, the part that is dared: a phase that is hidden there may be steeper.
_DARED = 0.9
# From a size that ran out of memory and told nothing, down to this part of it.
_RETREAT = 8
# From here on a failed run is too far from one that fits to say much about the sizes between.
_FAR = 1.25
# How much a calculation may miss that reaches from one size to another, as a power of their ratio.
_MISSED = 0.07
# Two runs nearer than this say little about a slope.
_APART = 1.15
# Phases in which there are no gradients yet, or hardly any.
_UNTIL_GRADIENTS = ("forward", "backward 0")


@dataclass(frozen=True, slots=True)
class Probe:
    """What a run of some steps with one batch size told. All sizes in bytes."""

    batch: int
    """The batch size."""
    verdict: str
    """`fits`, `out of memory`, `retries` (the allocator had to give memory back and ask again) or `spill` (more was
    taken than the device has, so it lies in host memory)."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """The most that tensors held in each phase: `forward`, `backward 0` and so on, `optimizer`, `rest`; of the first
    step with `, first step` after the name. Of a run that failed, the phases that it came through."""
    start: int = 0
    """What tensors held before the last step that was begun: parameters, optimizer state, the batch."""
    reserved: int = 0
    """The most that the allocator had taken from the device."""
    complete: bool = True
    """Whether all steps were done."""
    steps: int = 0
    """Optimizer steps that were done (of an evaluation: calls)."""
    retries: int = 0
    """How often the allocator gave memory back and asked again."""
    seconds: float = 0.0
    """How long the run took, the start of its process included if it had a new one."""
    message: str | None = None
    """The first line of the error, if the run ended with one."""
    where: str | None = None
    """The phase in which it ran out of memory."""
    held: Mapping[str, int] = field(default_factory=dict)
    """What tensors held after the last step, by class."""
    outside: int | None = None
    """What the process held on the device beside its allocator: context, libraries."""
    free: int | None = None
    """What the device had free for the run before it began."""
    optimizers: tuple[str, ...] = ()
    """The classes of the optimizers that made steps."""
    new_process: bool = True
    """Whether it began in a process of its own."""
    settled: bool = True
    """Whether the allocator no longer took more memory in the last steps."""

    @property
    def fits(self) -> bool:
        """Whether the size fits."""
        return self.verdict == FITS

    @property
    def peak(self) -> int:
        """The most that tensors held."""
        return max(self.peaks.values(), default=0)


class Search:
    """The search for the largest batch size of one kind of step.

    Ask :meth:`next` for a size, run it, tell :meth:`add`; None is the end. Then ``fitting`` and ``failing`` are the
    answer and its neighbour, and ``verified`` says whether nothing lies between them.
    """

    def __init__(self, budget: int, start: int, most: int, multiple: int = 1, probes: int = MOST_PROBES) -> None:
        """Begin at ``start``; sizes are multiples of ``multiple`` up to ``most``."""
        self.budget = budget
        self.multiple = multiple
        self.most = max(most // multiple, 1) * multiple
        self.probes: list[Probe] = []
        self._start = self._round(start)
        self._limit = probes

    # What is known.

    def add(self, probe: Probe) -> None:
        """Take what the run of a size has told."""
        self.probes.append(probe)

    @property
    def fitting(self) -> Probe | None:
        """The largest size that was run and fits."""
        return max((probe for probe in self.probes if probe.fits), key=lambda probe: probe.batch, default=None)

    @property
    def failing(self) -> Probe | None:
        """The smallest size above it that was run and does not fit."""
        least = 0 if self.fitting is None else self.fitting.batch
        failed = (probe for probe in self.probes if not probe.fits and probe.batch > least)
        return min(failed, key=lambda probe: probe.batch, default=None)

    @property
    def verified(self) -> bool:
        """Whether the size that fits was run, and one at most 3 % larger that does not (or may not be: ``most``)."""
        if self.fitting is None:
            return False
        if self.fitting.batch >= self.most:
            return True
        return self.failing is not None and self.failing.batch <= self.above(self.fitting.batch)

    @property
    def too_small(self) -> bool:
        """Whether the smallest possible size does not fit."""
        return self.fitting is None and any(probe.batch <= self.multiple for probe in self.probes)

    def above(self, batch: int) -> int:
        """The next size that is worth a run: 3 % larger, at least one step of ``multiple``."""
        return min(batch + max(self.multiple, int(batch * _STEP) // self.multiple * self.multiple), self.most)

    def _below(self, batch: int) -> int:
        """The smallest size from which ``batch`` is the next."""
        size = self._round(math.ceil(batch / (1 + _STEP)))
        while size + self.multiple < batch and self.above(size) < batch:
            size += self.multiple
        while size > self.multiple and self.above(size - self.multiple) >= batch:
            size -= self.multiple
        return min(size, max(batch - self.multiple, self.multiple))

    def _round(self, batch: float) -> int:
        return min(max(int(batch // self.multiple), 1) * self.multiple, self.most)

    # What is calculated.

    def estimate(self) -> int | None:
        """The largest size that fits, as calculated from the runs so far; None if they do not tell."""
        anchor = self._anchor()
        if anchor is None:
            return None
        lines = self._lines(anchor)
        # Fragmentation grows with what it is a fragmentation of.
        overhead = max(anchor.reserved / anchor.peak, 1.0) if anchor.peak and anchor.fits else 1.0
        base = anchor.reserved if anchor.fits else anchor.peak
        largest: float = self.most
        for constant, slope in lines:
            # base + overhead * (constant + slope * batch - peak) <= budget
            room = (self.budget - base) / overhead + anchor.peak - constant
            if slope > 0:
                largest = min(largest, room / slope)
            elif room < 0:
                largest = 0
        # The smallest size is an answer only where the calculation says so.
        return 0 if largest < self.multiple else self._round(largest)

    def reserved_for(self, batch: int) -> int | None:
        """How much the allocator will reserve for a size, as calculated."""
        anchor = self._anchor()
        if anchor is None or not anchor.peak:
            return None
        peak = max(constant + slope * batch for constant, slope in self._lines(anchor))
        return max(0, round(anchor.reserved + (peak - anchor.peak) * max(anchor.reserved / anchor.peak, 1.0)))

    def _anchor(self) -> Probe | None:
        """The run nearest to the answer of which all phases are known."""
        if self.fitting is not None and self.fitting.peak:
            return self.fitting
        return min((probe for probe in self.probes if probe.complete and probe.peak), key=_batch, default=None)

    def _lines(self, anchor: Probe) -> list[tuple[float, float]]:
        """Constant and slope of each phase, through the anchor."""
        # What was there before the step does not grow with the batch, and before the first gradients nothing else is
        # there that does not. If some of it does not grow either, more fits than a single run says.
        steepest = max(
            (anchor.peaks[phase] for phase in _UNTIL_GRADIENTS if phase in anchor.peaks), default=anchor.peak
        )
        lines = []
        for phase, peak in anchor.peaks.items():
            # A run that failed in its second step has told of the first, and the same lines are parallel there.
            names = [name for name in (phase, phase + FIRST_STEP) if name in anchor.peaks]
            others = [
                (probe, name)
                for probe in self.probes
                for name in names
                if name in probe.peaks and probe.batch != anchor.batch
            ]
            apart = [other for other in others if _ratio(other[0], anchor) >= _APART] or others
            other, name = min(apart, key=lambda other: _ratio(other[0], anchor), default=(None, phase))
            if other is None:
                slope = max(min(peak, steepest) - anchor.start, 0) / anchor.batch
            else:
                slope = max((anchor.peaks[name] - other.peaks[name]) / (anchor.batch - other.batch), 0.0)
            lines.append((peak - slope * anchor.batch, slope))
        return lines

    # What is done.

    def next(self) -> int | None:
        """The size to run next; None if the search is over."""
        if not self.probes:
            return self._start
        if len(self.probes) >= self._limit or self.verified or self.too_small:
            return None
        low, high = self.fitting, self.failing
        if low is None:
            return self._retreat()
        wanted = self._wanted(low)
        upper = self.above(low.batch)
        if high is None:
            return max(wanted, upper)
        # The size from which the failed one is the next: if it fits, the search is over.
        lower = self._below(high.batch)
        if lower <= upper or upper <= wanted <= lower:
            return min(max(wanted, upper), lower)
        # Calculation and runs contradict each other.
        return upper if wanted < upper else self._less(low, high, lower)

    def _wanted(self, low: Probe) -> int:
        """The size that the calculation is for, as far as that may be trusted."""
        guess = self.estimate()
        runs = sum(1 for probe in self.probes if probe.complete)
        # Below a size that was run, nothing is far.
        furthest = self.most if self.failing is not None else self._round(low.batch * _LEAP)
        if guess is None or guess >= self.most:
            return furthest
        if runs > 1 and guess * _STEP >= 2 * self.multiple:
            # The calculation is then in the middle between this size and the next, and both turn out as they should.
            guess = self._round(guess / (1 + _STEP / 2))
        elif runs == 1 and guess > 2 * low.batch:
            guess = self._round(max(guess * _DARED, 2 * low.batch))
        return min(guess, furthest)

    def _less(self, low: Probe, high: Probe, lower: int) -> int:
        """A size below the one that failed though the calculation says that it fits."""
        failed = sum(1 for probe in self.probes if not probe.fits and probe.batch <= high.batch * _FAR)
        calculated = sum(1 for probe in self.probes if probe.complete) > 1
        if not high.complete and high.batch > _FAR * low.batch and (failed > 1 or not calculated):
            # It told nothing but that a phase has been hidden in all runs so far.
            size = low.batch * (high.batch / low.batch) ** 0.6
        elif self.probes[-1].fits:
            # What the allocator wastes jumps somewhere between them.
            near = lower <= self.above(low.batch) * (1 + _STEP)
            size = lower if near else math.sqrt(low.batch * high.batch)
        elif not high.complete:
            # The further the calculation reached, the more it may have missed.
            size = high.batch / (high.batch / low.batch) ** _MISSED
        else:
            # The allocator wastes more than it did in the run that fits: how much more is found in growing steps.
            size = high.batch / (1 + _STEP) ** (2 ** (failed - 1))
        return min(max(self._round(size), self.above(low.batch)), lower)

    def _retreat(self) -> int:
        """A smaller size, after one that failed with nothing that fits yet."""
        failed = min(self.probes, key=_batch)
        down = failed.batch / _RETREAT
        if failed.complete:
            guess = self.estimate()
            # Nothing says yet how much the allocator wastes: assumed in growing steps.
            down = max(min(guess or failed.batch, failed.batch) * (1 - 0.05 * 4 ** (len(self.probes) - 1)), down)
        return min(self._round(down), max(failed.batch - self.multiple, self.multiple))


def _batch(probe: Probe) -> int:
    return probe.batch


def _ratio(one: Probe, other: Probe) -> float:
    return max(one.batch, other.batch) / min(one.batch, other.batch)
