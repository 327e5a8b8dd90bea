"""A plan, as people use it: what it says, and what it does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuheap._bytes import bytes_text
from gpuheap._fit.explain import explain
from gpuheap._fit.form import check, read
from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap._fit.apply import Applied

__all__ = ["Plan"]

_BESIDE = ("saves_bytes", "costs_us", "what", "why", "code")


class Plan:
    """Whether a program fits, and what makes it fit. Sizes are bytes, times microseconds.

    >>> plan = gpuheap.fit(make, "24GiB")
    >>> plan.fits, plan.peak["device_bytes"], plan.step_us
    (True, 24906153984, 533000.0)
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        """Take over what the planner found, or what was saved."""
        check(found)
        self._found = dict(found)
        # What a page draws: large, and of no use to who reads or saves the plan.
        self._timelines = self._found.pop("timelines", None)
        self.verified: dict[str, Any] | None = None
        """What a run on the GPU took, beside what was predicted; None before :meth:`verify`."""

    @property
    def verdict(self) -> str:
        """``fits``, ``fits_with_spill`` or ``does_not_fit``: with the plan, which may be empty."""
        return str(self._found["verdict"])

    @property
    def fits(self) -> bool:
        """Whether it fits without spilling to the host."""
        return self.verdict == "fits"

    @property
    def budget_bytes(self) -> int:
        """What the program may take of each GPU."""
        return int(self._found.get("budget_bytes", 0))

    @property
    def peak(self) -> dict[str, Any]:
        """The peak with the plan: ``allocated_bytes``, ``reserved_bytes``, ``device_bytes`` (context included), ``low``
        and ``high``, the ``phase`` and ``module`` at work, and the largest ``holders``."""
        return dict(self._found.get("peak", {}))

    @property
    def baseline(self) -> dict[str, Any]:
        """The same of the program as it is."""
        return dict(self._found.get("baseline", {}))

    @property
    def peak_from(self) -> str:
        """What the peak is worked out from: ``trace`` of the program as it will run, with the plan, or ``rules`` where
        that could not be traced."""
        return str(self._found.get("peak_from", "trace"))

    @property
    def step_us(self) -> float:
        """The predicted time of a step with the plan."""
        return float(self._found.get("step_us", 0.0))

    @property
    def levers(self) -> list[dict[str, Any]]:
        """What is changed, as :meth:`apply` takes it."""
        return [{name: value for name, value in lever.items() if name not in _BESIDE} for lever in self._found["plan"]]

    @property
    def smallest_budget_bytes(self) -> int | None:
        """The smallest budget that some plan keeps to; None if that was not found."""
        value = self._found.get("smallest_budget_bytes")
        return None if value is None else int(value)

    @property
    def front(self) -> list[dict[str, Any]]:
        """Time against memory: for each budget the fastest plan. Needs ``fit(..., front=True)``."""
        return list(self._found.get("front", []))

    @property
    def notes(self) -> list[str]:
        """What the reader should know."""
        return list(self._found.get("notes", []))

    def explain(self) -> str:
        """Verdict, peaks, the plan as a table, who holds the memory; as text."""
        return explain(self._found, self.verified)

    def diff(self, program: str | os.PathLike[str] | None = None, plan: str = "plan.json") -> str:
        """The lines that change in the program, as a unified diff of its file; a snippet where they cannot be found.

        Args:
            program: the file with the training loop; by default that of ``make``.
            plan: where the plan will have been saved, as the changed program reads it.
        """
        from gpuheap._fit.diff import diff

        return diff(self._found, self.levers, program, plan)

    def torchrun(self, program: str = "train.py") -> str:
        """The line that starts the program: its variables, `gpuheap run` if it spills, one process for each GPU."""
        from gpuheap._fit.start import counted_bytes, start_line

        return start_line(self.levers, program, counted_bytes(self._found))

    def html(self, path: str | os.PathLike[str], *, plan: str = "plan.json") -> None:
        """Write it as one HTML file, to be opened in a browser: memory through a step as it is and as planned, the
        changes, time against memory. It needs no network.

        A plan that was saved and read again has no memory through time.

        Args:
            path: the file.
            plan: where the plan will have been saved, as the changed program reads it.

        Raises:
            Error: it cannot be written, or the plan lacks what a page shows.
        """
        from gpuheap import _core
        from gpuheap._fit.changes import changes_of

        found = self._found if self._timelines is None else {**self._found, "timelines": self._timelines}
        changes = changes_of(self, plan) if self.levers else None
        lines = None if changes is None else (changes["diff"], changes["start"])
        _core.fit_html(json.dumps(found), path, changes=lines)

    def apply(
        self,
        model: Any,
        optimizer: Any = None,
        *,
        loss: Any = None,
        weigh: Callable[[Any], Any] | None = None,
        force: bool = False,
    ) -> Applied:
        """Apply the plan to a program; see `docs/python/fit.md` for the loop.

        Args:
            model: the model, on the GPU.
            optimizer: its optimizer, before the first step.
            loss: as in :class:`gpuheap.Fit`; needed for ``applied.step``.
            weigh: what the mean loss of a part of a batch counts for, if that is neither its samples nor its labels.
            force: also where the plan says that the program does not fit with it.

        Everything is checked before anything is changed.

        Raises:
            Error: the plan does not fit, or a lever does not suit the program; the message says why, and what to do.
        """
        from gpuheap._fit.apply import apply

        if self.verdict == "does_not_fit" and not force:
            least = self.smallest_budget_bytes
            smallest = f"; the smallest budget that works is {bytes_text(least)}" if least else ""
            raise Error(
                f"the program does not fit in {bytes_text(self.budget_bytes)} with this plan{smallest}",
                "Plan for a larger budget or a smaller batch; `apply(..., force=True)` applies it all the same.",
            )

        return apply(self.levers, model, optimizer, loss=loss, weigh=weigh)

    def verify(self, make: Callable[[], Any] | str | None = None, *, steps: int = 5) -> dict[str, Any]:
        """Run the plan for some steps on the GPU, in a process of its own; what it took, beside what was predicted.

        With the lever `compile`, whose effect no trace tells, its `activation_memory_budget` is lowered until what the
        run takes keeps to the budget; the plan then has the largest that does.

        Raises:
            Error: there is no GPU, or the program cannot be found again or fails.
        """
        from gpuheap._fit.planning import source_of
        from gpuheap._fit.verify import verify, with_part

        source = (self._found.get("source") or {}).get("make")
        found = source_of(make) if make is not None else source
        if not found:
            raise Error(
                "the plan cannot be verified: another process has to find `make`, and it is no function of a file",
                'Put it into a file, and give it as text: `plan.verify("train.py:make")`.',
            )
        self.verified = verify(self._found, found, steps=steps)
        part = self.verified.get("activation_memory_budget")
        if part is not None:
            # What was found to fit is what is applied.
            self._found = with_part(self._found, part)
        return self.verified

    def as_dict(self) -> dict[str, Any]:
        """All of it, as `gpuheap fit --json` prints it."""
        return dict(self._found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all."""
        target = Path(path)
        beside = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(json.dumps(self._found, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, target)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise Error(f"cannot write {target}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read what :meth:`save` or `gpuheap fit --json` wrote.

        Raises:
            Error: it cannot be read, or is no plan.
        """
        return cls(read(path))

    def __str__(self) -> str:
        """The same as :meth:`explain`."""
        return self.explain()

    def __repr__(self) -> str:
        """Verdict and levers in short."""
        names = ", ".join(str(lever["lever"]) for lever in self.levers) or "none"
        return f"Plan({self.verdict}; levers: {names})"

    def _repr_html_(self) -> str:
        from gpuheap._fit.notebook import notebook

        return notebook(self._found)
