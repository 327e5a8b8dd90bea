"""The search for a batch size on models of memory, and what is planned from its result: no framework needed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gpuheap._batch.failures import first_line, is_out_of_memory
from gpuheap._batch.plan import make_plan, scale_rate
from gpuheap._batch.search import FITS, MOST_PROBES, Probe, Search
from support_batch import MIB, Model, solve


def any_model(chance: random.Random, waste: float, hidden: bool = False) -> tuple[Model, int]:
    """A model and a budget that some batch of 1 to 2048 fills, of which the batch is a real part."""
    while True:
        static = chance.uniform(0.05, 8) * 1024 * MIB
        model = Model(
            parameters=static / 4,
            gradients=static / 4,
            state=chance.choice([0.0, static / 2]),
            each=10 ** chance.uniform(-1, 3) * MIB,
            forward=chance.uniform(0.7, 1),
            hidden=chance.uniform(0, 0.8) if hidden else 0.0,
            early=chance.uniform(0, 1) if hidden else 0.0,
            waste=waste,
            seed=chance.randrange(1 << 30),
        )
        budget = model.reserved(int(2 ** chance.uniform(0, 11))) + chance.randrange(2 * MIB)
        if budget > 1.15 * model.reserved(0):
            return model, budget


def test_without_waste_the_answer_is_found_and_verified() -> None:
    counts = []
    for seed in range(1500):
        model, budget = any_model(random.Random(seed), waste=0.0)
        search = solve(model, budget)
        assert search.verified, seed
        answer = search.fitting
        assert answer is not None
        assert model.reserved(answer.batch) <= budget
        assert model.reserved(search.above(answer.batch)) > budget
        counts.append(len(search.probes))
    assert max(counts) <= MOST_PROBES
    assert sum(counts) / len(counts) < 4.6


@pytest.mark.parametrize(("waste", "hidden", "most"), [(0.03, False, 5), (0.08, False, 30), (0.03, True, 80)])
def test_with_waste_most_are_verified_and_all_are_honest(waste: float, hidden: bool, most: int) -> None:
    unverified = 0
    for seed in range(1000):
        model, budget = any_model(random.Random(seed), waste, hidden)
        search = solve(model, budget)
        assert len(search.probes) <= MOST_PROBES
        if search.fitting is None:
            continue
        low = search.fitting.batch
        # What is called fitting was run, in the end; and what is called too large, too.
        assert model.reserved(low) <= budget
        if search.failing is not None:
            assert low < search.failing.batch
            assert model.reserved(search.failing.batch) > budget
        if search.verified:
            assert search.failing is not None
            assert search.failing.batch <= search.above(low)
        unverified += not search.verified
    assert unverified <= most


@pytest.mark.parametrize("start", [1, 8, 64, 1024])
def test_any_start_is_good_enough(start: int) -> None:
    for seed in range(200):
        model, budget = any_model(random.Random(seed), waste=0.0)
        search = solve(model, budget, start)
        assert search.fitting is not None or start >= 64
        if start <= 64:
            assert search.verified or search.probes[0].verdict != FITS


def test_a_line_through_small_sizes_ignores_the_kink_and_phases_do_not() -> None:
    # Up to 40 samples the optimizer is the peak, and the largest sum hardly moves.
    model = Model(parameters=1024 * MIB, gradients=1024 * MIB, state=2048 * MIB, each=32 * MIB)
    budget = 10_000 * MIB
    whole = [max(model.peaks(batch).values()) for batch in (1, 2)]
    line = (budget - whole[0]) / (whole[1] - whole[0]) if whole[1] > whole[0] else float("inf")
    assert line > 5 * (budget // (32 * MIB))
    search = solve(model, budget, start=1)
    assert search.verified
    assert len(search.probes) <= 4
    assert all(probe.batch < 1000 for probe in search.probes)


def test_memory_that_does_not_depend_on_the_batch_ends_at_most() -> None:
    model = Model(parameters=1024 * MIB, gradients=1024 * MIB, state=0, each=10)
    search = solve(model, 4096 * MIB, most=5000)
    assert search.fitting is not None
    assert search.fitting.batch == 5000
    assert search.verified
    # Nothing that was not run is an answer, and no run goes far beyond the ones before.
    batches = [probe.batch for probe in search.probes]
    assert all(second <= 32 * first for first, second in pairwise(batches))
    unbounded = solve(model, 4096 * MIB, most=1 << 40)
    assert not unbounded.verified
    assert unbounded.fitting is not None
    assert unbounded.fitting.batch == max(probe.batch for probe in unbounded.probes)


def test_nothing_fits() -> None:
    model = Model(parameters=1024 * MIB, gradients=1024 * MIB, state=0, each=MIB)
    search = solve(model, 1500 * MIB)
    assert search.too_small
    assert search.fitting is None
    assert [probe.batch for probe in search.probes] == [8, 1]
    # A start that is far too high comes down, and ends.
    assert len(solve(model, 1500 * MIB, start=4096).probes) <= MOST_PROBES


def test_one_fits_and_two_do_not() -> None:
    model = Model(parameters=64 * MIB, gradients=64 * MIB, state=0, each=1000 * MIB)
    search = solve(model, 1500 * MIB)
    assert search.fitting is not None
    assert search.failing is not None
    assert (search.fitting.batch, search.failing.batch) == (1, 2)


def test_sizes_are_multiples() -> None:
    for seed in range(200):
        model, budget = any_model(random.Random(seed), waste=0.02)
        search = solve(model, budget, most=1000, multiple=24)
        if search.verified and search.failing is not None and search.fitting is not None:
            assert search.failing.batch - search.fitting.batch in range(24, max(25, int(0.03 * 1000) + 1))


def test_a_size_that_needs_retries_does_not_fit() -> None:
    search = Search(1000, 8, 100)
    peaks = {"forward": 900, "backward 0": 950}
    search.add(Probe(8, "retries", peaks, 100, 1000, retries=1))
    assert search.fitting is None
    assert search.failing is not None
    following = search.next()
    assert following is not None
    assert following < 8


def test_the_border_is_not_monotonic() -> None:
    # 100 to 103 waste much, 104 to 110 nothing: what is found has a neighbour that does not fit.
    class Odd(Model):
        def reserved(self, batch: int) -> int:
            return 900 + (400 if 100 <= batch <= 103 else 0) + batch * 10

    model = Odd(parameters=900, gradients=10, state=0, each=10)
    search = Search(2020, 8, 1 << 16)
    while (batch := search.next()) is not None:
        reserved = model.reserved(batch)
        peaks = {"forward": 900 + 9 * batch, "backward 0": 900 + 10 * batch}
        search.add(Probe(batch, FITS if reserved <= 2020 else "retries", peaks, 900, min(reserved, 2020)))
    assert search.verified
    assert search.fitting is not None
    assert model.reserved(search.fitting.batch) <= 2020
    assert model.reserved(search.above(search.fitting.batch)) > 2020


# Errors.


class OutOfMemoryError(RuntimeError):
    """As CuPy and PyTorch call theirs."""


class ResourceError(Exception):
    """A program's own."""


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "NCCL error: unhandled cuda error, NCCL version 2.27\nLast error: Failed to CUDA calloc 6291456 bytes",
        "Cuda failure 2 'out of memory'",
        "HIP out of memory. Tried to allocate 20.00 MiB",
        "Triton Error [CUDA]: out of memory",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes",
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_every_library_has_its_own_words(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    # As the text of something else it is no such error.
    assert not is_out_of_memory(ValueError(text))


def test_types_come_before_texts() -> None:
    assert is_out_of_memory(OutOfMemoryError("nothing that a reader knows"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x4 and 3x3)"))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_out_of_memory(KeyError("memory"))


def test_programs_wrap_what_they_catch() -> None:
    with pytest.raises(ResourceError) as caught:
        try:
            raise OutOfMemoryError("full")
        except OutOfMemoryError as error:
            raise ResourceError("the step failed") from error
    assert is_out_of_memory(caught.value)
    assert first_line(caught.value) == "ResourceError: the step failed"
    with pytest.raises(ResourceError) as caught:
        try:
            raise OutOfMemoryError("full")
        except OutOfMemoryError:
            raise ResourceError("something else") from None
    assert not is_out_of_memory(caught.value)
    circle = ResourceError("a circle")
    circle.__cause__ = circle
    assert not is_out_of_memory(circle)


# Plans.


@pytest.mark.parametrize(
    ("largest", "multiple", "ranks", "target", "expected"),
    [
        (100, 1, 1, None, (100, 1)),
        (100, 1, 1, 256, (85, 3)),  # 64 x 4 would be exact, but gives away more than a quarter
        (70, 1, 1, 256, (64, 4)),
        (23, 1, 1, 256, (21, 12)),
        (300, 1, 1, 256, (256, 1)),
        (24, 8, 1, 256, (24, 11)),
        (16, 1, 4, 256, (16, 4)),
        (5, 1, 2, 4, (2, 1)),
        (8, 1, 4, 2, (1, 1)),
    ],
)
def test_plans(largest: int, multiple: int, ranks: int, target: int | None, expected: tuple[int, int]) -> None:
    plan = make_plan(largest, multiple, ranks, target)
    assert (plan.batch, plan.accumulation) == expected
    assert plan.batch <= largest
    assert plan.batch % multiple == 0


def test_plans_stay_near_their_target() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        multiple, ranks = chance.choice([1, 2, 8]), chance.choice([1, 2, 8])
        largest, target = chance.randrange(1, 50) * multiple, chance.randrange(1, 300) * multiple * ranks
        plan = make_plan(largest, multiple, ranks, target)
        assert multiple <= plan.batch <= largest
        assert plan.batch % multiple == 0
        assert abs(plan.effective - target) <= max(multiple * ranks * plan.accumulation / 2, 0.25 * target)


def test_learning_rates() -> None:
    assert scale_rate(0.1, 256, 256, ("SGD",))[0] == 0.1
    rate, rule = scale_rate(0.1, 256, 512, ("SGD",))
    assert rate == pytest.approx(0.2)
    assert rule.startswith("linear for SGD: 0.1 * 512 / 256")
    rate, rule = scale_rate(3e-4, 256, 1024, ("AdamW",))
    assert rate == pytest.approx(6e-4)
    assert rule.startswith("square root for AdamW")
    for optimizers in ((), ("Sophia",), ("SGD", "AdamW")):
        rate, rule = scale_rate(1.0, 256, 1024, optimizers)
        assert rate is None
        assert "linear would be 4, square root 2" in rule
