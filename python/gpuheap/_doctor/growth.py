"""From what outlives its step to findings: who holds it, what it looks like, what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuheap._bytes import bytes_text, signed_bytes_text
from gpuheap._doctor.bounds import bound_of
from gpuheap._doctor.graphs import Chain
from gpuheap._doctor.patterns import WHAT, advice
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Site, Stack
from gpuheap._doctor.timeline import Alive, Timeline, group_of
from gpuheap._doctor.trend import Trend, Window, rises, slope, trend_of
from gpuheap.holders import Holder, holders

__all__ = ["Growth", "Kept", "growing", "growth_rate"]

_ASKED = 8
_ASK_SECONDS = 30.0
_SHOWN = 3
_NUMBER_BYTES = 16
# These say nothing of a cause: if the tensors have graphs, that is one.
_PLAIN = ("kept", "numbers", "periodic")
_TRACEBACK = "kept by the traceback of "
_INDEX = re.compile(r"\[[^\]]*\](?:\[[^\]]*\]|\.\w+)*")
_GRAPH_OF = re.compile(r"\(?(?:\d+ steps? behind the )?grad_fn of (.*)\)$")


@dataclass
class Kept:
    """Places of the program whose memory one holder keeps."""

    root: str
    """The holder without positions: what the places have in common."""
    holders: list[Holder]
    places: list[tuple[Stack, Trend, list[Alive]]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes per step."""
        return sum(trend.bytes_per_step for _, trend, _ in self.places)

    @property
    def alive(self) -> list[Alive]:
        """What the judged steps have left."""
        return [one for _, _, alive in self.places for one in alive]

    @property
    def main(self) -> tuple[Stack, Trend]:
        """The place with the most."""
        stack, trend, _ = max(self.places, key=lambda place: place[1].bytes_per_step)
        return stack, trend


def _judge(timeline: Timeline, steps: int) -> dict[object, Trend]:
    window = Window(steps)
    births: dict[object, dict[int, list[int]]] = {}
    for key, one in timeline.alive.items():
        if one.born >= 0 and key not in timeline.owned:
            births.setdefault(group_of(one), {}).setdefault(one.born, []).append(one.storage.bytes)
    return {
        name: trend_of(window, sizes, timeline.groups[name].curve, timeline.groups[name].oldest_freed)
        for name, sizes in births.items()
        if name in timeline.groups
    }


def _joined(timeline: Timeline, steps: int) -> list[tuple[Stack, int, list[int]]]:
    """Lines at which one tensor is joined with new parts over and over: the key of the last, its bytes by step."""
    found = []
    for stack, entries in timeline.joined.items():
        last = entries[-1][1]
        if last not in timeline.alive or last in timeline.owned:
            continue
        by_step = {step: size for step, _, size in entries}
        curve: list[int] = []
        for step in range(steps):
            curve.append(by_step.get(step, curve[-1] if curve else 0))
        if rises(Window(steps), curve):
            found.append((stack, last, curve))
    return found


def growing(timeline: Timeline, steps: int) -> Literal["grows", "graph", "undecided", "no"]:
    """Whether anything grows, or might: then more steps are worth their time. `graph`: only graphs do."""
    trends = _judge(timeline, steps)
    names = {name for name, trend in trends.items() if trend.verdict == "grows"}
    names -= {group_of(one) for one in timeline.alive.values() if one.saved}
    if names or _joined(timeline, steps):
        return "grows"
    if rises(Window(steps), timeline.nodes):
        return "graph"
    return "undecided" if any(trend.verdict == "undecided" for trend in trends.values()) else "no"


def growth_rate(timeline: Timeline, steps: int) -> float:
    """Bytes by which the live memory grows with each step."""
    return max(0.0, slope(timeline.levels[Window(steps).first :]))


@dataclass
class Growth:
    """Makes the findings."""

    torch: Any
    timeline: Timeline
    steps: int
    chains: list[Chain]
    gradient_graphs: tuple[str, ...]
    """Names of the parameters whose gradients have graphs."""
    hooked: dict[int, tuple[str, Site | None]]
    """By key: which hook keeps a storage."""
    weights: frozenset[int]
    """Sizes in bytes of the model's parameters."""
    weight_count: int
    deadline: float
    findings: list[Finding] = field(default_factory=list)
    information: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    """Keys of what the findings are about."""

    def find(self) -> None:
        """Fills `findings`, `information` and `notes`."""
        window = Window(self.steps)
        if not window.enough:
            self.notes.append(f"{self.steps} steps are too few to tell a leak from a warm-up: 7 or more are needed")
            return
        graph_grows = rises(window, self.timeline.nodes)
        leaks = self._by_holder(window)
        graph_named = False
        in_graphs = {chain.key for chain in self.chains}
        for leak in leaks:
            bound = self._bound(leak)
            self._claim(leak)
            if bound is not None:
                self.information.append(self._bounded(leak, bound))
                continue
            pattern = self._pattern(leak, graph_grows)
            if graph_grows and pattern in _PLAIN and in_graphs.intersection(one.storage.key for one in leak.alive):
                pattern, graph_named = "graph", True
            graph_named = graph_named or any(one.saved for one in leak.alive)
            self.findings.append(self._finding(leak, pattern))
        if graph_grows and not graph_named:
            self._graph_alone(window)
        for stack, key, curve in _joined(self.timeline, self.steps):
            if key not in self.kept:
                self._one_grows(stack, key, curve, window)
        if not leaks and any(trend.verdict == "undecided" for trend in _judge(self.timeline, self.steps).values()):
            self.notes.append(
                f"some tensors outlived their step, but {self.steps} steps do not show whether they pile up: "
                "give a larger `steps` to see more"
            )

    def _claim(self, leak: Kept) -> None:
        """All that these places have left is the finding's, also that of the first and the last steps."""
        places = {group_of(one) for one in leak.alive}
        self.kept.update(key for key, one in self.timeline.alive.items() if one.born >= 0 and group_of(one) in places)

    # Who holds it

    def _by_holder(self, window: Window) -> list[Kept]:
        trends = _judge(self.timeline, self.steps)
        groups: dict[object, list[Alive]] = {}
        for one in self.timeline.survivors(window):
            if trends.get(group_of(one)) is not None and trends[group_of(one)].verdict == "grows":
                groups.setdefault(group_of(one), []).append(one)
        order = sorted(groups, key=lambda name: -trends[name].bytes_per_step)
        leaks: dict[str, Kept] = {}
        of_pass: dict[tuple[int, ...], str] = {}
        asked = 0
        for name in order:
            alive = sorted(groups[name], key=lambda one: one.born)
            # What graphs have saved in the same steps is of the same passes, and has one holder: that is asked once.
            steps = tuple(sorted({one.born for one in alive})) if all(one.saved for one in alive) else ()
            root = of_pass.get(steps) if steps else None
            held: list[Holder] = []
            if root is None and asked < _ASKED:
                asked += 1
                held = self._ask(alive[len(alive) // 2])
                root = _root(held[0]) if held else ""
                if steps:
                    of_pass[steps] = root
            if root is None:
                root = next(iter(leaks))
            leaks.setdefault(root, Kept(root, held)).places.append((alive[0].stack, trends[name], alive))
        return sorted(leaks.values(), key=lambda leak: -leak.rate)

    def _ask(self, one: Alive) -> list[Holder]:
        if not one.storage.address or time.monotonic() > self.deadline:
            return []
        try:
            found = holders(one.storage.address, limit=_SHOWN, budget=_ASK_SECONDS)
        except Exception:  # the finding is worth more than the names in it
            return []
        return [holder for holder in found if holder.root != "unseen"][:_SHOWN] or list(found)[:1]

    # What it looks like

    def _pattern(self, leak: Kept, graph_grows: bool) -> str:
        stack, trend = leak.main
        alive = leak.alive
        first = leak.holders[0] if leak.holders else None
        kind = first.kind if first is not None else ""
        path = first.path if first is not None else ""
        hooked = sum(one.storage.bytes for one in alive if one.storage.key in self.hooked)
        sizes = {one.storage.bytes for one in alive}
        per_step = len(alive) / max(1, trend.steps_with)
        weights = sum(1 for one in alive if one.storage.bytes in self.weights)
        cached = {one.storage.bytes for place in leak.places for one in place[2]}
        if _TRACEBACK in path or kind in ("traceback", "last error"):
            return "exceptions"
        if kind == "autograd" or 2 * sum(one.saved for one in alive) > len(alive):
            return self._graph_pattern(graph_grows)
        if 2 * hooked > sum(one.storage.bytes for one in alive) or stack.in_hook:
            return "hook"
        if kind == "cache":
            return "method cache" if self._is_method(first) else "cache"
        if all(one.batch for one in alive):
            return "view" if _pins(first) else "batches"
        if _pins(first):
            return "view"
        if all(one.storage.bytes <= _NUMBER_BYTES or one.needed <= _NUMBER_BYTES // 2 for one in alive):
            return "numbers"
        if self.weight_count >= 2 and per_step >= 0.5 * self.weight_count and weights >= 0.9 * len(alive):
            return "model copies"
        if all(one.backward for one in alive):
            return "gradients"
        if len(cached) >= 6 and 10 * len(sizes) >= 9 * len(alive):
            return "cache"
        if 10 * trend.steps_with <= 6 * trend.judged:
            return "periodic"
        return "kept"

    def _graph_pattern(self, graph_grows: bool) -> str:
        if self.gradient_graphs:
            return "gradient graph"
        if graph_grows and self.chains:
            chain = self.chains[0]
            if 2 * chain.nodes > sum(one.nodes for one in self.chains):
                return "total" if chain.elements == 1 else "state"
        return "graph"

    @staticmethod
    def _is_method(holder: Holder | None) -> bool:
        return holder is not None and holder.root == "class"

    def _bound(self, leak: Kept) -> int | None:
        middle = leak.places[0][2]
        return bound_of(self.torch, middle[len(middle) // 2].storage.key) if not middle[0].saved else None

    # Findings

    def _chain_site(self, chain: Chain) -> Site | None:
        written = self.timeline.operations.written.get(chain.key)
        if written is not None and written.sites:
            return written.sites[0]
        one = self.timeline.alive.get(chain.key)
        return one.stack.sites[0] if one is not None and one.stack.sites else None

    def _finding(self, leak: Kept, pattern: str) -> Finding:
        stack, trend = leak.main
        made = stack.sites[0] if stack.sites else None
        site = made
        if pattern in ("total", "state") and self.chains:
            site = self._chain_site(self.chains[0]) or made
        rate = round(leak.rate)
        evidence = [
            f"{trend.steps_with} of {trend.judged} judged steps left memory behind that was still alive at the end"
        ]
        evidence += self._places(leak)
        evidence.append(self._levels())
        if pattern in ("total", "state", "graph") and self.timeline.nodes:
            evidence.append(self._nodes())
        if pattern == "view":
            evidence.append(
                f"the view that is kept needs {bytes_text(leak.holders[0].needed_bytes or 0)} and pins "
                f"{bytes_text(leak.holders[0].bytes or 0)}"
            )
        if pattern == "hook":
            evidence += sorted(
                {self.hooked[one.storage.key][0] for one in leak.alive if one.storage.key in self.hooked}
            )
        evidence.append(self._oldest())
        left = self._steps_left(leak.rate)
        if left:
            evidence.append(left)
        return Finding(
            kind="leak",
            pattern=pattern,
            title=f"{_signed(leak.rate)} per step ({trend.judged} of {self.steps} steps judged): {WHAT[pattern]}",
            bytes=sum(one.storage.bytes for one in leak.alive),
            bytes_per_step=rate,
            site=site,
            holders=self._gradients(pattern) or tuple(holder.path for holder in leak.holders),
            evidence=tuple(evidence),
            remedy=advice(pattern, site),
            confidence=_surest(trend.confidence for _, trend, _ in leak.places),
        )

    def _gradients(self, pattern: str) -> tuple[str, ...]:
        if pattern != "gradient graph":
            return ()
        names = self.gradient_graphs
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ("the gradients of " + ", ".join(f"`{name}`" for name in names[:_SHOWN]) + more,)

    def _places(self, leak: Kept) -> list[str]:
        lines = []
        places = sorted(leak.places, key=lambda place: -place[1].bytes_per_step)
        for stack, trend, alive in places[:_SHOWN]:
            share = trend.bytes_per_step / leak.rate if leak.rate else 1.0
            what = "made by the backward pass called at" if all(one.backward for one in alive) else "allocated at"
            where = f"{what} {stack.sites[0]}" if stack.sites else "made where no line of the program was seen"
            called = f", called from {stack.sites[1]}" if len(stack.sites) > 1 else ""
            lines.append(f"{100 * share:.0f} % of it was {where}{called}")
        if len(places) > _SHOWN:
            lines.append(f"{len(places)} places in all")
        return lines

    def _levels(self) -> str:
        first = Window(self.steps).first
        levels, counts = self.timeline.levels, self.timeline.counts
        return (
            f"live memory at step ends: {bytes_text(levels[first])} in {counts[first]} storages "
            f"after {first + 1} steps, {bytes_text(levels[-1])} in {counts[-1]} after {self.steps}"
        )

    def _nodes(self) -> str:
        first = Window(self.steps).first
        before, after = self.timeline.nodes[first], self.timeline.nodes[-1]
        return f"nodes of live graphs: {before} after {first + 1} steps, {after} after {self.steps}"

    def _oldest(self) -> str:
        return (
            "a buffer that is still filling would look the same if it were meant for more than "
            f"{self.steps - Window(self.steps).first} steps"
        )

    def _steps_left(self, rate: float) -> str | None:
        cuda = getattr(self.torch, "cuda", None)
        if rate <= 0 or cuda is None or not cuda.is_available() or not self.timeline.device_levels:
            return None
        free, _ = cuda.mem_get_info()
        allocated, reserved = self.timeline.device_levels[-1]
        return f"about {(free + reserved - allocated) / rate:,.0f} more steps until the device is full"

    def _bounded(self, leak: Kept, bound: int) -> Finding:
        stack, trend = leak.main
        per_item = sum(one.storage.bytes for one in leak.alive) / max(1, trend.survivors)
        return Finding(
            kind="bounded_buffer",
            title=f"{_signed(leak.rate)} per step until a container with room for {bound} items is full",
            bytes=round(per_item * bound),
            bytes_per_step=round(leak.rate),
            site=stack.sites[0] if stack.sites else None,
            holders=tuple(holder.path for holder in leak.holders),
            evidence=(f"at the rate seen it will hold about {bytes_text(round(per_item * bound))}",),
            remedy="Nothing, if that is meant to be; else a smaller bound, or the host's memory.",
            confidence="medium",
        )

    def _graph_alone(self, window: Window) -> None:
        """The graph grows, and its memory is not the device's: the nodes themselves lie on the host."""
        rate = slope(self.timeline.nodes[window.first :])
        pattern = self._graph_pattern(graph_grows=True)
        chain = self.chains[0] if self.chains else None
        site = held = None
        if chain is not None:
            site = self._chain_site(chain)
            one = self.timeline.alive.get(chain.key)
            held = self._ask(one) if one is not None else []
        self.findings.append(
            Finding(
                kind="leak",
                pattern=pattern,
                title=f"+{rate:.0f} graph nodes per step ({window.length} of {self.steps} steps judged): "
                f"{WHAT[pattern]}",
                site=site,
                holders=self._gradients(pattern) or tuple(holder.path for holder in held or ()),
                evidence=(
                    self._nodes(),
                    *(() if chain is None else (f"most of them hang from a {chain.text}",)),
                    "what they had saved is freed by `backward()`; the nodes stay on the host, and each keeps the "
                    "one before",
                ),
                remedy=advice(pattern, site),
                confidence="high" if window.length >= 12 else "medium",
            )
        )

    def _one_grows(self, stack: Stack, key: int, curve: list[int], window: Window) -> None:
        one = self.timeline.alive[key]
        rate = slope(curve[window.first :])
        site = stack.sites[0] if stack.sites else None
        self.kept.add(key)
        self.findings.append(
            Finding(
                kind="leak",
                pattern="joined",
                title=f"{_signed(rate)} per step ({window.length} of {self.steps} steps judged): {WHAT['joined']}",
                bytes=curve[-1],
                bytes_per_step=round(rate),
                site=site,
                holders=tuple(holder.path for holder in self._ask(one)),
                evidence=(
                    f"it had {bytes_text(curve[window.first])} after {window.first + 1} steps and "
                    f"{bytes_text(curve[-1])} after {self.steps}",
                    "each step makes a larger one and drops the old one: while it is copied, both are there",
                    self._oldest(),
                ),
                remedy=advice("joined", site),
                confidence="medium",
            )
        )


def _root(holder: Holder) -> str:
    # Whatever the variables of a failed call are named: the exception keeps them all.
    failed = holder.path.rpartition("kept by the traceback of ")[2] if _TRACEBACK in holder.path else ""
    if failed:
        return "traceback of " + _INDEX.sub("[…]", failed.rstrip(")"))
    graph = _GRAPH_OF.search(holder.path)
    return "graph of " + _INDEX.sub("[…]", graph.group(1)) if graph else _INDEX.sub("[…]", holder.path)


def _surest(levels: Iterable[Literal["high", "medium", "low"]]) -> Literal["high", "medium", "low"]:
    known = set(levels)
    return "high" if "high" in known else "medium" if "medium" in known else "low"


def _pins(holder: Holder | None) -> bool:
    if holder is None or holder.needed_bytes is None or not holder.bytes:
        return False
    return 2 * holder.needed_bytes <= holder.bytes


def _signed(rate: float) -> str:
    return signed_bytes_text(round(rate)) if rate >= 1 else "less than +1 B"
