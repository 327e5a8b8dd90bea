"""Garbage in reference cycles: memory that each step leaves until Python's collector runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from gpuheap._bytes import bytes_text, signed_bytes_text
from gpuheap._doctor.patterns import advice
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Stack
from gpuheap._doctor.timeline import Alive, Timeline
from gpuheap._doctor.trend import Window
from gpuheap.holders import holders

__all__ = ["cycle_of", "find"]

_SHARE = 0.02
_SECONDS = 20.0
_CANDIDATES = 4


def cycle_of(timeline: Timeline, step: int, stacks: Sequence[Stack]) -> tuple[str, ...]:
    """Who holds what lines like those of the last garbage have made in this step: asked before the collection."""
    fresh: list[Alive] = [one for one in timeline.alive.values() if one.born == step and one.stack in stacks]
    for one in sorted(fresh, key=lambda one: -one.storage.bytes)[:_CANDIDATES]:
        if not one.storage.address:
            continue
        found = holders(one.storage.address, limit=2, budget=_SECONDS)
        cycles = [holder.path for holder in found if holder.root == "cycle"]
        if cycles and not any(holder.root in ("global", "local", "class") for holder in found):
            return tuple(cycles[:2])
    return ()


def find(timeline: Timeline, steps: int, collecting: bool, held: tuple[str, ...]) -> list[Finding]:
    """The finding.

    Args:
        timeline: what was seen.
        steps: how many steps were run.
        collecting: whether the program lets Python collect by itself.
        held: what `cycle_of` has found.
    """
    window = Window(steps)
    judged = timeline.garbage[window.first :]
    if len(judged) < 3 or sum(1 for taken in judged if taken) < len(judged) / 2:
        return []
    rate = sum(judged) / len(judged)
    level = median(timeline.levels[window.first :])
    if rate < _SHARE * (level + rate):
        return []
    stack = max(timeline.garbage_stacks, key=lambda one: timeline.garbage_stacks[one])
    share = timeline.garbage_stacks[stack] / max(1, sum(timeline.garbage_stacks.values()))
    site = stack.sites[0] if stack.sites else None
    kind: Literal["sawtooth", "leak"] = "sawtooth" if collecting else "leak"
    rate_text = signed_bytes_text(round(rate))
    evidence = [f"`gc.collect()` at the end of {sum(1 for one in judged if one)} of {len(judged)} steps freed tensors"]
    if site is not None:
        evidence.append(f"{100 * share:.0f} % of them were made at {site}")
    evidence.append(
        f"what is alive after a collection: {bytes_text(timeline.levels[window.first])}, later "
        f"{bytes_text(timeline.levels[-1])}"
    )
    if not collecting:
        evidence.append("the collector is switched off (`gc.disable()`): nothing else frees them")
    return [
        Finding(
            kind=kind,
            pattern="cycle" if collecting else "collector off",
            title=f"{rate_text} of garbage per step until the collector runs"
            if collecting
            else f"{rate_text} per step: reference cycles keep tensors, and the collector is switched off",
            bytes=round(rate * len(judged)),
            bytes_per_step=round(rate),
            site=site,
            holders=held,
            evidence=tuple(evidence),
            remedy=advice("collector off", site)
            if not collecting
            else "Break the reference cycle that holds these tensors (an object that refers to itself through a "
            "closure, a "
            "hook, a parent or an exception; an output on `ctx` instead of `save_for_backward`): use `weakref`, or "
            "set the "
            "attribute to `None`. Until then call `gc.collect()` every few steps.",
            confidence="high" if len(judged) >= 6 else "medium",
        )
    ]
