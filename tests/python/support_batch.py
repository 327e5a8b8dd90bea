"""Steps for `test_batch_size.py` that another process can import, and memory models for the search."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from gpuheap._batch.search import FITS, Probe, Search

MIB = 1 << 20


class Model(NamedTuple):
    """What a step takes, by phase; all in bytes, `each` for one sample."""

    parameters: float
    gradients: float
    state: float
    each: float
    forward: float = 0.9
    """The part of it that is there at the end of the forward pass."""
    hidden: float = 0.0
    """What one sample takes at the end of the backward pass, as a part of `each`: seen in no small batch."""
    early: float = 0.0
    """Gradients that are there in the first part of the backward pass, while less of the batch is, as a part of all."""
    waste: float = 0.0
    """The most that the allocator wastes, as a part of what the batch takes."""
    seed: int = 0

    def peaks(self, batch: int) -> dict[str, int]:
        base = self.parameters + self.state
        peaks = {
            "forward": base + batch * self.each * self.forward,
            "backward 0": base
            + max(batch * self.each, self.early * self.gradients + batch * self.each * 0.7)
            + 0.05 * self.gradients,
            "backward 7": base + 1.3 * self.gradients + batch * self.each * (0.1 + self.hidden),
            "optimizer": base + 1.3 * self.gradients,
        }
        first = {f"{phase}, first step": peak - self.state for phase, peak in peaks.items()}
        return {phase: int(peak) for phase, peak in (first | peaks).items()}

    def reserved(self, batch: int) -> int:
        # The same in a range of 2 %, then something else, up or down.
        cell = int(math.log(batch + 1) / math.log(1.02))
        waste = random.Random(f"{self.seed} {cell}").random() * self.waste
        need = max(self.peaks(batch).values()) + waste * batch * self.each
        return math.ceil(need / (2 * MIB)) * 2 * MIB

    def probe(self, batch: int, budget: int) -> Probe:
        """A run under a budget, as a device would have it."""
        peaks, reserved = self.peaks(batch), self.reserved(batch)
        if reserved <= budget:
            return Probe(batch, FITS, peaks, int(self.parameters + self.state), reserved)
        if max(peaks.values()) <= 0.99 * budget:
            # What is cached is given back, and then there is room.
            return Probe(batch, "retries", peaks, int(self.parameters + self.state), budget, retries=2)
        seen: dict[str, int] = {}
        for phase, peak in peaks.items():
            if peak > budget:
                break
            seen[phase] = peak
        return Probe(batch, "out of memory", seen, 0, budget, complete=False)


def solve(model: Model, budget: int, start: int = 8, most: int = 1 << 16, multiple: int = 1) -> Search:
    """Search with a model in place of a device."""
    search = Search(budget, start, most, multiple)
    while (batch := search.next()) is not None:
        assert batch % multiple == 0
        assert multiple <= batch <= search.most
        assert batch not in {probe.batch for probe in search.probes}
        search.add(model.probe(batch, budget))
    return search


# Steps.


def make_step(batch_size: int, optimizer: str = "AdamW", width: int = 256, **settings: Any) -> Callable[[], Any]:
    """Three layers, one step."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()
    )
    optim = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **settings)
    data = torch.randn(batch_size, 64)

    def step() -> Any:
        loss = model(data).square().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        return loss

    return step


def make_sgd_step(batch_size: int) -> Callable[[], Any]:
    return make_step(batch_size, "SGD", momentum=0.9)


def make_evaluation(batch_size: int) -> Callable[[], Any]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    data = torch.randn(batch_size, 64)

    def step() -> None:
        with torch.no_grad():
            model(data)

    return step


def make_large_evaluation(batch_size: int) -> Callable[[], Any]:
    import torch

    return lambda: torch.zeros(batch_size, 64 * MIB)


def make_generator_step(batch_size: int) -> Callable[[], Any]:
    """A step that is a generator: called, it has done nothing yet."""
    step = make_step(batch_size)

    def epoch() -> Any:
        step()
        yield

    return epoch


def make_coroutine_step(batch_size: int) -> Callable[[], Any]:
    """A step that nobody waits for."""
    step = make_step(batch_size)

    async def serve() -> None:
        step()

    return serve


def make_kinked_step(batch_size: int) -> Callable[[], Any]:
    """The optimizer is what small batches see: gradients and their copies."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(MIB))
    optimizer = torch.optim.Adam([weight], foreach=False)

    def step() -> None:
        activations = [(weight[:512] * 1.0).expand(batch_size, 512).exp() for _ in range(20)]
        optimizer.zero_grad()
        torch.stack([one.mean() for one in activations]).sum().backward()
        optimizer.step()

    return step


def make_indifferent_step(batch_size: int) -> Callable[[], Any]:
    """Memory that hardly depends on the batch."""
    step = make_step(8)
    return lambda: step() if batch_size else None


def make_wrong_shape(batch_size: int) -> Callable[[], Any]:
    import torch

    def step() -> None:
        torch.nn.Linear(3, 3)(torch.zeros(batch_size, 4))

    return step


def make_swallowing_step(batch_size: int) -> Callable[[], Any]:
    """A step that skips what does not fit, as many training loops do."""
    import torch

    inner = make_step(batch_size)

    def step() -> None:
        with suppress(torch.cuda.OutOfMemoryError):
            inner()

    return step


def make_late_step(batch_size: int) -> Callable[[], Any]:
    """Scaled gradients: the first calls make no optimizer step, so the optimizer has no state before the sixth."""
    import torch

    model = torch.nn.Linear(64, 1024)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.randn(batch_size, 64)
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        model(data).square().mean().backward()
        if calls > 5:
            optimizer.step()

    return step


def make_nothing(batch_size: int) -> Any:
    return None


def make_idle(batch_size: int) -> Callable[[], Any]:
    return lambda: None


def make_where(batch_size: int) -> Callable[[], Any]:
    """Write down in which process it is called, for which size, and what the launcher's variables are there."""
    with open(os.environ["GPUHEAP_TEST_CALLS"], "a") as file:
        file.write(f"{os.getpid()} {batch_size} {os.environ.get('WORLD_SIZE')}\n")
    return make_step(batch_size)


kept: list[Any] = []


def make_leaving_step(batch_size: int) -> Callable[[], Any]:
    """A program that keeps its models: each run would find less than the one before in the same process."""
    with open(os.environ["GPUHEAP_TEST_CALLS"], "a") as file:
        file.write(f"{os.getpid()} {batch_size}\n")
    step = make_step(batch_size)
    kept.append(step)
    return step


def make_ranked_step(batch_size: int) -> Callable[[], Any]:
    """Rank 1 has larger samples, as if its device were smaller."""
    return make_step(batch_size, width=512 if os.environ.get("GPUHEAP_TEST_RANK") == "1" else 256)


def make_failing_rank(batch_size: int) -> Callable[[], Any]:
    if os.environ.get("GPUHEAP_TEST_RANK") == "1":
        raise KeyError("only here")
    return make_step(batch_size)


def rank_main(rank: int, path: str, factory: str, budget: str, results: Any) -> None:
    """One rank of a program of two."""
    import torch

    import gpuheap

    os.environ["GPUHEAP_TEST_RANK"] = str(rank)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    try:
        found = gpuheap.find_batch_size(globals()[factory], budget, device="cpu", quiet=True, target=4096)
        results.put((rank, found.largest, found.largest_by_rank, found.accumulation, found.effective, str(found)))
    except Exception as error:
        results.put((rank, type(error).__name__, str(error)))
    # The group still works: everybody has taken part in everything.
    value = torch.tensor([rank + 1])
    torch.distributed.all_reduce(value)
    results.put((rank, "sum", int(value)))
    torch.distributed.destroy_process_group()


def make_gpu_step(batch_size: int) -> Callable[[], Any]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(batch_size, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step
