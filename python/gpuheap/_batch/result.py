"""What `find_batch_size` has found, and how it is shown."""

from __future__ import annotations

import html
from dataclasses import dataclass

from gpuheap._batch.phases import merged
from gpuheap._batch.plan import Plan
from gpuheap._batch.search import Probe
from gpuheap._bytes import bytes_text
from gpuheap.errors import Error

__all__ = ["BatchSize", "BatchSizeError", "Found"]

_PHASES = ("build", "forward", "backward", "optimizer", "rest")


@dataclass(frozen=True, slots=True)
class Found:
    """The result of the search for one kind of step on this rank."""

    largest: int | None
    """The largest size that was run and fits; None if not even the smallest does."""
    too_large: int | None
    """The smallest size above it that was run and does not fit."""
    verified: bool
    """Whether nothing lies between the two: `too_large` is at most 3 % (or one step) larger, or `largest` is the most
    that was asked for."""
    computed: int | None
    """The largest size that fits by calculation. Where `verified` is false, the best that is known beyond `largest`."""
    budget: int
    """Bytes that the allocator may reserve."""
    most: int
    """The largest size that would have been tried."""
    device: str
    probes: tuple[Probe, ...]
    """All runs, in their order."""
    stopped: str | None = None
    """Why the search ended before its time, if it did."""

    @property
    def run(self) -> Probe | None:
        """The run of the largest size that fits."""
        return next((probe for probe in reversed(self.probes) if probe.fits and probe.batch == self.largest), None)

    @property
    def headroom(self) -> int:
        """Bytes of the budget that the largest size leaves."""
        return self.budget - self.run.reserved if self.run is not None else 0

    def sentences(self) -> list[str]:
        """Why this size: what was run, and what is only calculated."""
        if self.run is None:
            return [f"not even the smallest size fits: {self._failure(self.probes[-1])}"]
        run = self.run
        said = [
            f"{run.batch} fits, verified by a run: {run.steps} steps, {bytes_text(run.reserved)} reserved, no retries; "
            f"{bytes_text(self.headroom)} of the budget are left"
        ]
        above = next((probe for probe in self.probes if probe.batch == self.too_large and not probe.fits), None)
        if above is not None:
            percent = 100 * (above.batch - run.batch) / run.batch
            said.append(f"{above.batch} ({percent:.0f} % more) does not, verified by a run: {self._failure(above)}")
        if self.verified and above is None:
            said.append(f"{run.batch} is the most that was allowed (`most={self.most}`)")
        if not self.verified:
            upper = f"{above.batch - 1}" if above is not None else f"{self.most}, the most that was allowed"
            why = f" ({self.stopped})" if self.stopped else ""
            said.append(f"the search ended first{why}: the largest that fits lies between {run.batch} and {upper}")
            if self.computed is not None and self.computed > run.batch:
                ceiling = above.batch - 1 if above is not None else self.computed
                said.append(f"calculated, not run: {min(self.computed, ceiling)}")
        return said

    def _failure(self, probe: Probe) -> str:
        if probe.verdict == "retries":
            times = "once" if probe.retries == 1 else f"{probe.retries} times"
            return f"{times}, the allocator had to give memory back and ask again"
        if probe.verdict == "spill":
            return "the driver put a part into host memory"
        where = f" in phase {probe.where}" if probe.where else ""
        return f"{probe.verdict}{where}"

    def rows(self) -> list[tuple[str, ...]]:
        """A table: a header, then a row for each run."""
        merges = [merged(dict(probe.peaks)) for probe in self.probes]
        phases = [phase for phase in _PHASES if any(phase in peaks for peaks in merges)]
        rows: list[tuple[str, ...]] = [("batch", *phases, "reserved", "retries", "steps", "seconds", "")]
        for probe, peaks in zip(self.probes, merges, strict=True):
            cells = [bytes_text(peaks[phase]) if phase in peaks else "-" for phase in phases]
            verdict = self._failure(probe) if probe.verdict == "out of memory" else probe.verdict
            numbers = (bytes_text(probe.reserved), str(probe.retries), str(probe.steps), f"{probe.seconds:.1f}")
            rows.append((str(probe.batch), *cells, *numbers, verdict))
        return rows

    def notes(self, training: bool) -> list[str]:
        """What the reader should know."""
        run = self.run
        if run is None:
            return []
        said = []
        if not run.settled:
            said.append("the allocator still took more memory in the last steps: leave some headroom, or raise `steps`")
        if training and not run.optimizers:
            said.append("no optimizer made a step: if the real one keeps state, it is missing here")
        if run.free is not None and self.budget > run.free:
            said.append(
                f"the device had {bytes_text(run.free)} free, less than the budget: others hold the rest, this program "
                "included"
            )
        return said


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What `find_batch_size` returns. `str()` of it is the account of the search."""

    plan: Plan
    """Batch, accumulation and ranks that go together."""
    largest: int
    """The largest batch size that fits on every rank."""
    learning_rate: float | None
    """The learning rate for this plan, if one was given and a usual rule is known."""
    learning_rate_rule: str | None
    """Which rule, and what it was calculated from."""
    training: Found
    """The search for the training step on this rank."""
    evaluation: Found | None
    """The search for the evaluation step on this rank, if there was one."""
    eval_batch_size: int | None
    """The largest batch size of the evaluation step that fits on every rank; None if none does, or none was asked
    for."""
    largest_by_rank: tuple[int, ...]
    """What each rank has found; the smallest counts."""
    target: int | None
    """The effective batch that was asked for."""
    seconds: float
    """How long it took."""

    @property
    def batch_size(self) -> int:
        """The batch size to use, on each rank and for each pass: `largest`, or less if that makes `target` exact."""
        return self.plan.batch

    @property
    def accumulation(self) -> int:
        """Passes between two optimizer steps."""
        return self.plan.accumulation

    @property
    def effective(self) -> int:
        """Samples that an optimizer step sees, over all passes and ranks."""
        return self.plan.effective

    @property
    def verified(self) -> bool:
        """Whether runs, and no calculation, say that the training step fits and a slightly larger one does not."""
        return self.training.verified

    def text(self) -> str:
        """The account as text, without a line break at its end."""
        where = f"{self.training.device}, budget {bytes_text(self.training.budget)}"
        lines = [f"batch size {self.batch_size} ({where})"]
        lines += [f"  {line}" for line in self._why()]
        lines += ["", *_table(self.training.rows())]
        if self.evaluation is not None:
            size = "none fits" if self.eval_batch_size is None else str(self.eval_batch_size)
            lines += ["", f"evaluation: batch size {size}"]
            lines += [f"  {line}" for line in self.evaluation.sentences()]
            lines += ["", *_table(self.evaluation.rows())]
        notes = self._notes()
        lines += ["", *(f"note: {note}" for note in notes)] if notes else []
        return "\n".join(lines)

    def _why(self) -> list[str]:
        lines = self.training.sentences()
        if self.plan.ranks > 1:
            sizes = ", ".join(map(str, self.largest_by_rank))
            lines.append(f"{self.plan.ranks} ranks found {sizes}: {self.largest} fits on all")
        if self.target is not None:
            ranks = f" x {self.plan.ranks} ranks" if self.plan.ranks > 1 else ""
            exact = "" if self.effective == self.target else f", not {self.target}: no larger part divides it"
            lines.append(
                f"accumulation {self.accumulation}: {self.batch_size} x {self.accumulation}{ranks} = "
                f"{self.effective} samples a step{exact}"
            )
        if self.learning_rate_rule is not None:
            rate = "" if self.learning_rate is None else f"{self.learning_rate:g}, "
            lines.append(f"learning rate {rate}{self.learning_rate_rule}")
        return lines

    def _notes(self) -> list[str]:
        notes = self.training.notes(training=True)
        if self.batch_size < self.largest:
            notes.append(f"{self.batch_size} itself was not run: it is smaller than {self.largest}, which was")
        if self.training.largest is not None and self.largest < self.training.largest:
            notes.append(f"this rank was run with {self.training.largest}, not with {self.largest}")
        if self.evaluation is not None:
            notes += [f"evaluation: {note}" for note in self.evaluation.notes(training=False)]
        return notes

    def __str__(self) -> str:
        """The account."""
        return self.text()

    def __repr__(self) -> str:
        """Short; `str()` has the account."""
        verified = "verified" if self.verified else "not verified"
        return f"<gpuheap.BatchSize: {self.batch_size}, {verified}, in {len(self.training.probes)} runs>"

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(line)}</p>" for line in (f"batch size {self.batch_size}", *self._why())]
        parts.append(_html_table(self.training.rows()))
        if self.evaluation is not None:
            parts += [f"<p>evaluation: {html.escape(line)}</p>" for line in self.evaluation.sentences()]
            parts.append(_html_table(self.evaluation.rows()))
        parts += [f"<p>note: {html.escape(note)}</p>" for note in self._notes()]
        return "".join(parts)


class BatchSizeError(Error):
    """No batch size was found: not even the smallest fits, or time ran out before one did."""

    probes: tuple[Probe, ...] = ()
    """What was run."""


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if column + 1 < len(row) else cell
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _html_table(rows: list[tuple[str, ...]]) -> str:
    head, *body = (
        "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th"] + ["td"] * (len(rows) - 1), rows, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"
