"""Runs the steps with everything watched, and asks each check for what it has seen."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from gpuheap._doctor import (
    caches,
    copies,
    device,
    garbage,
    growth,
    habits,
    hooks,
    loading,
    parameters,
    pruning,
    states,
    stored,
)
from gpuheap._doctor.calls import Calls
from gpuheap._doctor.graphs import between_steps, chains, gradients_in_graph
from gpuheap._doctor.heap import Heap
from gpuheap._doctor.operations import Operations, following
from gpuheap._doctor.report import Finding, Report
from gpuheap._doctor.subject import Subject
from gpuheap._doctor.timeline import Timeline
from gpuheap._doctor.within import keys_within
from gpuheap._objects import class_name
from gpuheap._tensors import gradient_of, plain, storages_of
from gpuheap.errors import Error

__all__ = ["Session"]

_HOLDER_SECONDS = 120.0
_GROWTH_ALLOWED = 1 << 30
_CYCLES_ASKED = 2
_GRAPHS = ("total", "state", "graph", "gradient graph")


class Session:
    """One call of `doctor`."""

    def __init__(
        self,
        subject: Subject,
        step: Callable[..., object],
        *,
        loader: Any,
        evaluate: Callable[[], object] | None,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        """Takes the arguments of `doctor`; runs nothing."""
        torch = subject.torch
        self.torch = torch
        self.subject = subject
        self.report = Report()
        self._step = step
        self._evaluate = evaluate
        self._deadline = deadline
        self._say = say
        self._loader = None if loader is None else loading.Loader(torch, loader)
        self._items = subject.items()
        self._baseline = frozenset(id(tensor) for *_, tensor in subject.tensors())
        self.on_device = _on_device(torch, self._items)
        self._wanted: Callable[[str], bool] = _is_accelerator if self.on_device else _is_host
        self._operations = Operations(torch, self._wanted)
        self._heap = Heap(torch)
        self._timeline = Timeline(torch, self._wanted, self._operations, self._heap)
        roots = frozenset(id(one) for root in subject.roots for one in _inner(root))
        self._calls = Calls(torch, self._operations, roots, subject.parameters())
        self._steps = 0
        self._step_seconds: list[float] = []
        self._cycles: tuple[str, ...] = ()
        self._cycles_asked = 0
        self._compiled = _is_compiled(subject)
        self._collecting = gc.isenabled()
        self._gradients_before = self._gradients()

    # The steps

    def run(self, steps: int, most: int) -> None:
        """Runs `steps` steps, and up to `most` if something grows or might.

        Raises:
            Exception: whatever a step raises.
        """
        with plain(self.torch):
            self.report.findings += habits.autocast_cache(self.torch, self._items)
            self._copies = copies.Copies(self.subject, self._owned())
            self._operations.watched = self._copies.keys | frozenset(states.keys_of_foreign_parameters(self.subject))
            self._timeline.begin()
        try:
            with self._calls, self._heap:
                self.subject.heap = self._heap
                self._run(steps, steps)
                self._more(steps, most)
        finally:
            self.subject.heap = None
            if self._loader is not None:
                self._loader.close()
            self._calls.parameters = []

    def _run(self, until: int, planned: int) -> None:
        every = max(1, planned // 4)
        while self._steps < until:
            if self._steps and time.monotonic() > self._deadline:
                self._note(f"the time was up after {self._steps} steps: `budget_seconds` allows for more")
                return
            self._one(self._steps, evaluate=self._evaluate is not None and (self._steps + 1) % every == 0)
            self._steps += 1
            self.report.steps = self._steps

    def _more(self, steps: int, most: int) -> None:
        """More steps, as long as the ones so far do not settle it."""
        for goal in (2 * steps, most):
            until = min(goal, most)
            if until <= self._steps or self._steps < steps:
                continue
            state = growth.growing(self._timeline, self._steps)
            # Each step with a graph that never ends takes longer than the one before, and no buffer looks like it.
            if state == "no" or (state == "graph" and goal > 2 * steps):
                return
            until = min(until, self._steps + self._room())
            if until <= self._steps:
                self._note("no further steps were run to confirm the growth: they might not fit into memory")
                return
            self._say(f"something grows or might: {until - self._steps} more steps")
            before = self._steps
            try:
                self._run(until, steps)
            except StopIteration:
                self._note(f"the program's data ended after {before} steps: no more were run to confirm what grows")
                return

    def _room(self) -> int:
        rate = growth.growth_rate(self._timeline, self._steps)
        allowed = float(_GROWTH_ALLOWED)
        if self.on_device and self._timeline.device_levels:
            allowed = self.torch.cuda.mem_get_info()[0] / 2
        return int(allowed / rate) if rate >= 1 else sys.maxsize

    def _one(self, number: int, *, evaluate: bool) -> None:
        # A collection in the middle of a step would free what its end is to show.
        threshold = gc.get_threshold()
        gc.set_threshold(0)
        try:
            keys = self._watched(number, evaluate)
            with plain(self.torch):
                self._calls.note_gradients()
                self._look(number, keys)
        finally:
            if gc.get_threshold()[0] == 0:
                gc.set_threshold(*threshold)
        self.report.levels = self._timeline.levels

    def _watched(self, number: int, evaluate: bool) -> frozenset[int]:
        """One step of the program; returns the keys of its batch."""
        keys: frozenset[int] = frozenset()
        try:
            with self._follow(number):
                if self._loader is None:
                    started = time.perf_counter()
                    self._step()
                else:
                    batch = self._next()
                    keys = frozenset(keys_within(self.torch, batch))
                    started = time.perf_counter()
                    self._step(batch)
                    del batch
                self._step_seconds.append(time.perf_counter() - started)
                if evaluate and self._evaluate is not None:
                    self._calls.evaluating = True
                    self._evaluate()
        finally:
            self._calls.evaluating = False
        return keys

    def _look(self, number: int, keys: frozenset[int]) -> None:
        if not self._asks_for_cycles():
            self._timeline.end_step(number, self._owned(), keys)
            return
        self._cycles_asked += 1
        self._timeline.look(number)
        with self._heap.thawed():
            stacks = sorted(self._timeline.garbage_stacks, key=lambda one: -self._timeline.garbage_stacks[one])[:4]
            self._cycles = garbage.cycle_of(self._timeline, number, stacks) or self._cycles
            self._timeline.end_step(number, self._owned(), keys)

    def _next(self) -> Any:
        self._operations.in_loader = True
        try:
            if self._loader is None:
                raise RuntimeError("no loader")
            return self._loader.next()
        except StopIteration:
            if self._steps:
                raise
            raise Error(
                "`loader` gave no batch at all", hint="a generator that has ended gives nothing: make a new one"
            ) from None
        finally:
            self._operations.in_loader = False

    def _asks_for_cycles(self) -> bool:
        seen = self._timeline.garbage
        return self._cycles_asked < _CYCLES_ASKED and not self._cycles and len(seen) >= 2 and seen[-1] > 0

    def _follow(self, number: int) -> AbstractContextManager[Any]:
        # A compiled program would run uncompiled under a mode: two steps are enough to see where memory is made.
        if self._compiled and number not in (2, 3):
            return nullcontext()
        return following(self._operations)  # type: ignore[no-any-return]

    def _owned(self) -> frozenset[int]:
        return self.subject.owned(self._baseline)

    # The checks

    def examine(self, *, partial: bool = False) -> Report:
        """Asks every check, after the steps.

        Args:
            partial: the steps ended with an exception. What depends on all of them is left out.
        """
        report, torch = self.report, self.torch
        report.subject = self._about()
        for finding in parameters.dtypes(self._items) + parameters.large_buffers(self._items):
            report.add(finding)
        for finding in parameters.places(self._items) + habits.data_parallel(self.subject):
            report.add(finding)
        found, information = pruning.find(self.subject)
        report.findings += found
        report.information += information
        report.findings += habits.zeroed_gradients(self._calls.zero_grads)
        report.findings += habits.evaluation_graphs(self._calls.forwards)
        report.findings += habits.empty_cache(self._calls.empty_cache, self._steps, self._step_seconds)
        if not partial:
            self._training()
        grown = self._growth() if self._steps else None
        kept = grown.kept if grown is not None else set()
        report.findings += self._loading(kept)
        report.findings += stored.find(torch, self._wanted, self._timeline.owned, kept)
        report.findings += caches.find(self.subject)
        self._notes(partial)
        report.sort()
        return report

    def _training(self) -> None:
        """What a whole set of steps says about the weights."""
        report, calls = self.report, self._calls
        trained = bool(calls.backwards or calls.stepped or calls.with_gradient - set(self._gradients_before))
        if calls.backwards:
            report.findings += parameters.unused(self._items, calls.with_gradient)
        held = {name: size for name, size in self._gradients().values() if size}
        before = {name for name, _ in self._gradients_before.values()}
        names = [name for name in held if name in before]
        report.findings += parameters.gradients_held(sum(held[name] for name in names), names, trained)
        report.findings += states.find(self.subject, calls.stepped, self._operations.used)
        found, information = self._copies.judge(self._operations.used)
        report.findings += found
        report.information += information
        if calls.stepped:
            report.findings += copies.same_within(self.subject)

    def _growth(self) -> growth.Growth:
        torch, timeline = self.torch, self._timeline
        owners = chains(torch)
        hooked, with_graph = hooks.kept_by_hooks(self.subject, timeline)
        in_graph = gradients_in_graph(torch, self.subject.parameters())
        weights = [item for item in self._items if not item.buffer]
        grown = growth.Growth(
            torch,
            timeline,
            self._steps,
            owners,
            tuple(self.subject.names.get(id(one), "?") for one in in_graph),
            hooked,
            frozenset(item.bytes for item in weights),
            len(weights),
            time.monotonic() + _HOLDER_SECONDS,
        )
        count = len(in_graph)
        del in_graph
        grown.find()
        report = self.report
        words = habits.backward_words(self._calls.backwards)
        for finding in grown.findings:
            graph = finding.pattern in _GRAPHS
            report.findings.append(_with_evidence(finding, words) if graph and words else finding)
        report.information += grown.information
        report.notes += grown.notes
        report.findings += garbage.find(timeline, self._steps, self._collecting, self._cycles)
        found, information = hooks.find(timeline, hooked, with_graph, grown.kept)
        report.findings += found
        report.information += information
        if not any(one.saved for key, one in timeline.alive.items() if key in grown.kept) and not any(
            finding.pattern in _GRAPHS for finding in grown.findings
        ):
            report.findings += between_steps(timeline, self._steps, count, words)
        explained = sum(finding.bytes_per_step or 0 for finding in grown.findings)
        report.findings += device.find(timeline.device_levels, timeline.levels, explained)
        return grown

    def _loading(self, kept: set[int]) -> list[Finding]:
        steps = self._steps
        transfers = self._operations.transfers
        found = loading.pageable_copies(transfers, steps) + loading.transfers_in_loader(transfers, steps)
        loader = self._loader
        if loader is None:
            return found
        found += loading.slow_loader(loader.waits, self._step_seconds, loader.workers, self.on_device)
        found += loading.prefetched(loader.ahead, loader.batch_bytes)
        found += loading.batches_kept(self.torch, self._timeline, kept, time.monotonic() + _HOLDER_SECONDS)
        return found

    # Words

    def _gradients(self) -> dict[int, tuple[str, int]]:
        """By identity of a parameter that has a gradient: its name, and the gradient's bytes."""
        found = {}
        for name, buffer, _, tensor in self.subject.tensors():
            gradient = None if buffer else gradient_of(tensor)
            if gradient is not None:
                found[id(tensor)] = name, sum(one.bytes for one in storages_of(self.torch, gradient))
        return found

    def _about(self) -> str:
        where = sorted({item.device for item in self._items}) or ["no parameters"]
        return f"PyTorch {self.torch.__version__}, {', '.join(where)}"

    def _note(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes.append(text)

    def _notes(self, partial: bool) -> None:
        cuda = getattr(self.torch, "cuda", None)
        if cuda is None or not cuda.is_available():
            self._note(
                "no GPU here: live tensors were counted on the host; the allocator's counters, fragmentation and "
                "copies to "
                "the device were not checked"
            )
        elif not self.on_device:
            self._note("the model is on the CPU: only tensors in host memory were counted")
        if not self._items:
            self._note("the model has no parameters: nothing to check there")
        if any(item.device == "meta" for item in self._items):
            self._note("parameters on the `meta` device have no memory yet, and were not compared")
        if self._steps and not self._calls.model_calls:
            self._note(
                "the steps did not call the model that was given: parameters were checked, but another one may run"
            )
        if self._compiled:
            self._note("the model is compiled: where memory is made was watched in two steps only, run uncompiled")
        if self._loader is None:
            self._note("no `loader` given: how long the steps wait for data was not measured")
        if not partial and not self._calls.backwards:
            self._note("no backward pass was made: whether all parameters are trained was not checked")


def _with_evidence(finding: Finding, words: str) -> Finding:

    return replace(finding, evidence=(*finding.evidence, f"graphs were kept by {words}"))


def _is_accelerator(device: str) -> bool:
    return device not in ("cpu", "meta")


def _is_host(device: str) -> bool:
    return device == "cpu"


def _on_device(torch: Any, items: list[Any]) -> bool:
    """Whether the device's memory counts: where the weights are, or what the program has used so far."""
    known = [item.device for item in items if item.device != "meta"]
    if known:
        return any(_is_accelerator(device) for device in known)
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_available() and cuda.is_initialized() and cuda.memory_allocated())


def _inner(root: Any) -> list[Any]:
    """A model, and what it is without its wrapper."""
    found = [root]
    while len(found) < 4:
        modules = found[-1].__dict__.get("_modules") or {}
        inner = modules.get("_orig_mod") or (modules.get("module") if len(modules) == 1 else None)
        if inner is None:
            break
        found.append(inner)
    return found


def _is_compiled(subject: Subject) -> bool:
    return any(class_name(type(module)) == "OptimizedModule" for _, module in subject.modules())
