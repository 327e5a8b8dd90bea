"""A search from its first run to its last: processes, budget, time, and what to say if nothing fits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuheap import _transfer
from gpuheap._batch.probe import Order, Ran, run
from gpuheap._batch.result import BatchSizeError, Found
from gpuheap._batch.search import MOST_PROBES, Probe, Search
from gpuheap._bytes import bytes_text
from gpuheap._child import Limits
from gpuheap.errors import Error
from gpuheap.isolate import Isolate, IsolateTimeout

__all__ = ["Range", "Runs", "expect_budget", "search"]

# Left of what a device has free when no budget is given: code that larger sizes load later, and other programs' moves.
_MARGIN = 64 << 20
# From this part of the budget on, a run is made in a new process.
_NEAR = 0.9
# The budget of the search, as a default.
_OF_THE_SEARCH = "of the search"
# How much more than the budget the smallest size may take on a CPU, to find out by how much it does not fit.
_BEYOND = 4


class Runs:
    """Runs batch sizes, in new processes where it matters, else in the one before if that is as good as new."""

    def __init__(
        self,
        budget: int | None,
        device: str | None,
        steps: int,
        extra: int | None,
        seconds: float,
        quiet: bool,
    ) -> None:
        """Start nothing yet."""
        self.budget = budget
        self.device = device
        self.seconds = seconds
        self._began = time.monotonic()
        self._steps = steps
        self._extra = extra
        self._quiet = quiet
        self._outside = 0
        self._process: Isolate | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def run(
        self, make: bytes, batch: int, training: bool, fresh: bool = True, budget: int | str | None = _OF_THE_SEARCH
    ) -> Probe:
        """Run a batch size. Unless it has to be ``fresh``, the process of the run before may be used.

        Raises:
            IsolateTimeout: it took longer than is left.
        """
        left = self.seconds - self.elapsed
        if left <= 0:
            raise IsolateTimeout("No time is left")
        began = time.monotonic()
        if fresh:
            self.close()
        new = self._process is None
        if self._process is None:
            self._process = Isolate()
        self._process._limits = Limits(left, None)
        limit = self.budget if isinstance(budget, str) else budget
        order = Order(make, batch, self._steps, limit, self.device, self._extra, training)
        keep = False
        try:
            ran: Ran = self._process.call(run, order)
            keep = ran.clean and ran.probe.fits
        finally:
            if not keep:
                self.close()
        self.device = ran.device
        probe = replace(ran.probe, seconds=time.monotonic() - began, new_process=new)
        if not isinstance(budget, str):
            return probe
        self._learn_budget(probe)
        expect_budget(self.budget, self.device)
        if probe.fits and self.budget is not None and probe.reserved > self.budget:
            # Of the first run, which had all of the device.
            probe = replace(probe, verdict="out of memory", message="more than the budget")
        self._say(probe, training)
        return probe

    def _learn_budget(self, probe: Probe) -> None:
        if self.budget is None and probe.free is not None:
            self.budget = max(probe.free - (probe.outside or 0) - _MARGIN, 1)

    def _say(self, probe: Probe, training: bool) -> None:
        if self._quiet:
            return
        kind = "batch" if training else "evaluation batch"
        verdict = "fits" if probe.fits else f"does not fit ({probe.verdict})"
        of = f" of {bytes_text(self.budget)}" if self.budget is not None else ""
        text = f"{bytes_text(probe.reserved)} reserved{of}, {probe.seconds:.1f} s"
        print(f"gpuheap: {kind} {probe.batch} {verdict}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


@dataclass(frozen=True, slots=True)
class Range:
    """The sizes that may be tried."""

    start: int
    most: int
    multiple: int


def search(runs: Runs, make: Callable[[int], Any], sizes: Range, training: bool) -> Found:
    """Search for the largest size. Of an evaluation none may fit; that of a training step raises.

    Raises:
        BatchSizeError: not even the smallest size fits, or time ran out before one did.
    """
    data = _transfer.dumps(make)
    state = Search(runs.budget or 0, sizes.start, sizes.most, sizes.multiple)
    stopped = None
    while (batch := state.next()) is not None:
        try:
            probe = runs.run(data, batch, training, fresh=_is_near(state, batch))
        except IsolateTimeout:
            stopped = f"after {runs.seconds:g} s, the limit, in a run of {batch}"
            break
        _expect_memory(probe, runs.device)
        state.budget = runs.budget or 0
        state.add(probe)
    fitting, failing = state.fitting, state.failing
    if fitting is None and training:
        raise _nothing_fits(runs, data, state, stopped)
    if stopped is None and not state.verified and fitting is not None:
        stopped = f"after {MOST_PROBES} runs, the most"
    return Found(
        largest=None if fitting is None else fitting.batch,
        too_large=None if failing is None else failing.batch,
        verified=state.verified,
        computed=None if fitting is None else state.estimate(),
        budget=state.budget,
        most=state.most,
        device=runs.device or "",
        probes=tuple(state.probes),
        stopped=stopped,
    )


def _is_near(state: Search, batch: int) -> bool:
    """Whether a run may decide what fits.

    An allocator that holds nothing behaves as a new one does, but libraries have chosen their algorithms by then, and a
    few MiB can differ. That is nothing for a line, and may be all at the border.
    """
    expected = state.reserved_for(batch)
    return expected is None or expected > _NEAR * state.budget


def expect_budget(budget: int | None, device: str | None) -> None:
    """Refuse a search without an end: what the host has free is for other programs as well."""
    if budget is None and device == "cpu":
        raise Error("A CPU has no memory of its own to fill", 'say how much to use: `budget="4GiB"`')


def _expect_memory(probe: Probe, device: str | None) -> None:
    if probe.complete and not probe.peak:
        raise Error(
            f"The step with batch size {probe.batch} allocated nothing on `{device}`",
            "say with `device=` where it works, and make it with PyTorch tensors there",
        )


def _nothing_fits(runs: Runs, make: bytes, state: Search, stopped: str | None) -> BatchSizeError:
    """Say by how much the smallest size does not fit, and what fills the memory."""
    tried = min(state.probes, key=lambda probe: probe.batch, default=None)
    if tried is None or not state.too_small:
        sizes = ", ".join(str(probe.batch) for probe in state.probes) or "none"
        error = BatchSizeError(
            f"No batch size was found {stopped or f'after {MOST_PROBES} runs, the most'}; run, and too large: {sizes}",
            "begin lower (`start=`)" if stopped is None else "raise `timeout`, or begin lower (`start=`)",
        )
        error.probes = tuple(state.probes)
        return error
    budget = state.budget
    size = f"{tried.batch}" + ("" if state.multiple == 1 else f", the smallest multiple of {state.multiple},")
    probes = list(state.probes)
    whole = None
    if len(probes) < MOST_PROBES and stopped is None and runs.device is not None:
        whole = _without_budget(runs, make, tried.batch)
    if whole is not None and whole.complete:
        probes.append(whole)
        need = max(whole.reserved, budget + 1)
        message = (
            f"Batch size {size} does not fit into the budget of {bytes_text(budget)} on {runs.device}: it takes "
            f"{bytes_text(need)}, {bytes_text(need - budget)} too much"
        )
        filled = _filled(whole)
    else:
        message = f"Batch size {size} does not fit into the budget of {bytes_text(budget)} on {runs.device}"
        if tried.message is not None:
            message += f"\n  cause: {tried.message}" + (f" (in phase {tried.where})" if tried.where else "")
        filled = _filled(tried)
    lines = [f"  {name.ljust(27)} {bytes_text(amount).rjust(9)}" for name, amount in filled.items()]
    error = BatchSizeError("\n".join([message, *lines]), _advice(filled))
    error.probes = tuple(probes)
    return error


def _without_budget(runs: Runs, make: bytes, batch: int) -> Probe | None:
    """Run the smallest size with all that the device has, to know what it would take."""
    on_cpu = runs.device == "cpu"
    try:
        return runs.run(make, batch, training=True, budget=_BEYOND * (runs.budget or 0) if on_cpu else None)
    except Error:
        return None


_STEP = "activations and temporaries"


def _filled(probe: Probe) -> Mapping[str, int]:
    """What the memory is filled with at the peak: classes of what stays, and the step's own."""
    filled = {name: amount for name, amount in probe.held.items() if name != "activations"}
    step = probe.peak - sum(filled.values())
    if step > 0:
        filled[_STEP] = step
    return dict(sorted(filled.items(), key=lambda item: -item[1]))


def _advice(filled: Mapping[str, int]) -> str:
    first = next(iter(filled), _STEP)
    advice = {
        "parameters": "a smaller data type, parameters spread over devices, or fewer of them trained (LoRA)",
        "gradients": "gradients spread over devices, or fewer parameters trained (LoRA)",
        "optimizer state": "an optimizer with less state (Adafactor, 8-bit Adam, SGD), or its state spread over ranks",
    }
    return advice.get(first, "checkpoint activations, take shorter sequences or smaller images, or bf16 autocast")
