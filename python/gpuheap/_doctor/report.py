"""What `gpuheap.doctor` has found: findings, remarks, and how the steps went."""

from __future__ import annotations

import html
import json
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuheap._bytes import bytes_text, signed_bytes_text
from gpuheap._doctor.sites import Site

__all__ = ["Finding", "Report"]

# As wide as a terminal is at least.
_WIDTH = 80
_LEVELS = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. Text and numbers only: it keeps nothing alive."""

    kind: str
    """What it is; names stay the same from version to version."""
    title: str
    """The whole in one sentence."""
    bytes: int | None = None
    """How much memory it is about; None where that is no amount of memory."""
    bytes_per_step: int | None = None
    """By how much it grows with each step, for what grows."""
    site: Site | None = None
    """`file`, `line` and `function` of the user's code where it happens."""
    holders: tuple[str, ...] = ()
    """Who keeps it, as `gpuheap.holders` says it."""
    evidence: tuple[str, ...] = ()
    """What was seen."""
    remedy: str = ""
    """What to change."""
    confidence: Literal["high", "medium", "low"] = "high"
    """How sure this is."""
    pattern: str | None = None
    """For a leak: what it looks like (`graph`, `hook`, `exceptions`, `view`, …)."""

    @property
    def file(self) -> str | None:
        """The file of `site`."""
        return None if self.site is None else self.site.file

    @property
    def line(self) -> int | None:
        """The line of `site`."""
        return None if self.site is None else self.site.line

    @property
    def function(self) -> str | None:
        """The function of `site`."""
        return None if self.site is None else self.site.function

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {
            "kind": self.kind,
            "pattern": self.pattern,
            "title": self.title,
            "bytes": self.bytes,
            "bytes_per_step": self.bytes_per_step,
            "site": None if self.site is None else self.site._asdict(),
            "holders": list(self.holders),
            "evidence": list(self.evidence),
            "remedy": self.remedy,
            "confidence": self.confidence,
        }

    def text(self) -> str:
        """The finding as some lines."""
        size = "" if self.bytes is None else f"  [{bytes_text(self.bytes)}]"
        lines = _wrapped(f"{self.title}{size}", "   ", "   ")
        # A report puts a number there.
        lines[0] = lines[0].lstrip()
        if self.site is not None:
            lines.append(f"   at {self.site}")
        lines += [f"   held by {holder}" for holder in self.holders]
        for part in self.evidence:
            lines += _wrapped(part, "   - ", "     ")
        if self.remedy:
            lines += _wrapped(self.remedy, "   do: ", "       ")
        if self.confidence != "high":
            lines.append(f"   confidence: {self.confidence}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """The same."""
        return self.text()


def _wrapped(text: str, first: str, following: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=following,
        # Paths stay in one piece: they are there to be copied.
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass
class Report:
    """The answer of `gpuheap.doctor`: prints as a report."""

    findings: list[Finding] = field(default_factory=list)
    """What is wrong, the most memory first."""
    information: list[Finding] = field(default_factory=list)
    """What is worth knowing and may well be meant so: an averaged copy of the weights, a buffer with a bound."""
    notes: list[str] = field(default_factory=list)
    """What was not or could not be checked, and what was done to the program."""
    steps: int = 0
    """How many steps were run."""
    levels: list[int] = field(default_factory=list)
    """Bytes of live tensors at each step's end, after a collection of reference cycles."""
    subject: str = ""
    """The versions and devices that the report is about."""
    seconds: float = 0.0
    """How long it took."""
    error: str | None = None
    """The exception that ended the steps, as text, in a partial report."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and self.error is None

    def add(self, finding: Finding) -> None:
        """One more finding; the same one is kept once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def sort(self) -> None:
        """What grows first, then by bytes, the surest first among equals."""

        def order(one: Finding) -> tuple[bool, int, int]:
            return one.bytes_per_step is None, -(one.bytes_per_step or one.bytes or 0), _LEVELS[one.confidence]

        self.findings.sort(key=order)
        self.information.sort(key=order)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, sizes in bytes."""
        return {
            "schema": "gpuheap.doctor/1",
            "ok": self.ok,
            "subject": self.subject,
            "steps": self.steps,
            "levels": list(self.levels),
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "findings": [finding.as_dict() for finding in self.findings],
            "information": [finding.as_dict() for finding in self.information],
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False)

    def text(self) -> str:
        """The report as text, without a line break at its end."""
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        count = len(self.findings)
        verdict = "nothing found" if not count else "1 finding" if count == 1 else f"{count} findings"
        about = f" ({self.subject})" if self.subject else ""
        lines = _wrapped(f"gpuheap doctor: {verdict} in {steps}{about}", "", "  ")
        if self.error is not None:
            lines += _wrapped(f"the steps ended with {self.error}: this report is partial", "", "  ")
        if self.levels:
            first, last = self.levels[0], self.levels[-1]
            change = signed_bytes_text(last - first) if last != first else "unchanged"
            level = f"{bytes_text(first)} after the first, {bytes_text(last)} after the last ({change})"
            lines += _wrapped(f"live memory at step ends: {level}", "", "  ")
        for number, finding in enumerate(self.findings, 1):
            lines += ["", f"{number}. {finding.text()}"]
        if self.information:
            lines += ["", "worth knowing, and perhaps meant so:"]
            for finding in self.information:
                lines.append(f"-  {finding.text()}")
        if self.notes:
            lines.append("")
            for note in self.notes:
                lines += _wrapped(note, "note: ", "      ")
        return "\n".join(lines)

    __str__ = text

    def __repr__(self) -> str:
        """Short; `str()` has the report."""
        kinds = ", ".join(finding.kind for finding in self.findings) or "nothing found"
        return f"<gpuheap.doctor: {kinds} in {self.steps} steps>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"
