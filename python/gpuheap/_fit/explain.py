"""A plan as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from gpuheap._bytes import bytes_text, signed_bytes_text

__all__ = ["explain", "head", "title"]

_VERDICTS = {"fits": "FITS", "fits_with_spill": "FITS WITH SPILL", "does_not_fit": "DOES NOT FIT"}
# What else is in a lever of a plan.
_SAID_ELSEWHERE = ("lever", "modules", "keep", "saves_bytes", "costs_us", "what", "why", "code")
_SHARES = "(each change: the plan against itself without it, by rules; they overlap and do not add up)"
_WIDTH = 100
_HOLDERS = 5


def head(found: Mapping[str, Any]) -> list[str]:
    """The verdict, then the peaks and the moment that binds, a line each."""
    peak, base = found.get("peak", {}), found.get("baseline", {})
    budget = int(found.get("budget_bytes", 0))
    levers = found.get("plan", [])
    verdict = _VERDICTS.get(str(found.get("verdict")), str(found.get("verdict")))
    if found.get("verdict") == "fits" and levers and found.get("peak_from") == "rules":
        verdict = "FITS BY RULES"
    changes = f" with {len(levers)} change{'s' if len(levers) != 1 else ''}" if levers else " as it is"
    room = budget - int(peak.get("device_bytes", 0))
    if found.get("verdict") == "does_not_fit":
        # What is predicted may be within the budget, and what it may be beyond.
        room = budget - max(int(peak.get("device_bytes", 0)), int(peak.get("high", 0)))
        changes = ""
    left = f", {bytes_text(room)} to spare" if room >= 0 else f", {bytes_text(-room)} too much"
    if found.get("verdict") == "fits_with_spill":
        spilled: dict[str, Any] = next((one for one in levers if one.get("lever") == "spill"), {})
        left = f", up to {bytes_text(int(spilled.get('bytes', 0)))} of it on the host"
    lines = [f"{verdict} in {bytes_text(budget)}{changes}{left}"]
    lines.append(f"  as it is  {_peak(base)}")
    if levers:
        lines.append(f"  planned   {_peak({**peak, 'step_us': found.get('step_us', peak.get('step_us', 0.0))})}")
    module = f", in `{peak['module']}`" if peak.get("module") else ""
    if peak.get("phase"):
        lines.append(f"  peak in   {peak['phase']} of step {peak.get('step', 2)}{module}")
    return lines


def explain(found: Mapping[str, Any], verified: Mapping[str, Any] | None = None) -> str:
    """Verdict, peaks, plan and holders."""
    levers = found.get("plan", [])
    lines = head(found)
    if levers:
        lines += ["", f"{'change':<44}  {'memory':>10}  {'step':>10}  why"]
        for lever in levers:
            costs = float(lever.get("costs_us", 0.0)) / 1e3
            start = f"{_cut(title(lever), 44):<44}  {signed_bytes_text(-int(lever.get('saves_bytes', 0))):>10}  "
            lines.append(f"{start}{costs:>+7.1f} ms  {lever.get('why', '')}".rstrip())
        if len(levers) > 1:
            lines += textwrap.wrap(_SHARES, _WIDTH)
    holders = found.get("peak", {}).get("holders", [])[:_HOLDERS]
    if holders:
        lines += ["", "held at the peak"]
        for holder in holders:
            where = f"  {holder['module']}" if holder.get("module") else ""
            lines.append(f"  {bytes_text(int(holder['bytes'])):>10}  {holder['class']}{where}")
    smallest = found.get("smallest_budget_bytes")
    if smallest:
        lines += ["", f"the smallest budget that some plan keeps to: {bytes_text(int(smallest))}"]
    for note in found.get("notes", []):
        lines += textwrap.wrap(f"note: {note}", _WIDTH, subsequent_indent="      ")
    if verified is not None:
        from gpuheap._fit.verify import text_of

        lines += ["", text_of(verified)]
    return "\n".join(lines)


def title(lever: Mapping[str, Any]) -> str:
    """A lever in a few words."""
    if lever.get("what"):
        return str(lever["what"])
    values = [str(value) for name, value in lever.items() if name not in _SAID_ELSEWHERE]
    modules = lever.get("modules")
    if modules:
        values.append(f"{len(modules)} modules")
    return " ".join([str(lever.get("lever")), *values])


def _peak(peak: Mapping[str, Any]) -> str:
    low, high = int(peak.get("low", 0)), int(peak.get("high", 0))
    between = f" ({bytes_text(low)} to {bytes_text(high)})" if high else ""
    step = float(peak.get("step_us", 0.0))
    time = f", {step / 1e3:.1f} ms a step" if step else ""
    return f"{bytes_text(int(peak.get('device_bytes', 0)))}{between}{time}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
