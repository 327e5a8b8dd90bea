"""`find_batch_size` on CPU tensors: real steps in real processes, and what public finders get wrong."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

import gpuheap
import support_batch as steps
from gpuheap import _transfer
from gpuheap._batch.cpu import CpuMeter
from gpuheap._batch.cuda import CudaMeter, spilled_bytes
from gpuheap._batch.meter import meter_for
from gpuheap._batch.probe import Order, run
from gpuheap._batch.run import Runs
from gpuheap._batch.search import FITS, Probe, Search
from gpuheap._bytes import parse_bytes
from gpuheap.batch_size import BatchSize

torch = pytest.importorskip("torch")

MIB = 1 << 20


# The size that fits into 8 MiB is near: a search that begins here is short.
NEAR = 1000


@pytest.fixture(scope="module")
def plain() -> BatchSize:
    """The result for a plain training step."""
    return find(steps.make_step, target=8192, learning_rate=3e-4)


def find(make: Any, budget: Any = "8MiB", **settings: Any) -> BatchSize:
    return gpuheap.find_batch_size(make, budget, device="cpu", quiet=True, **settings)


def order(make: Any, batch: int, budget: int | None, steps: int = 3, training: bool = True) -> Order:
    return Order(_transfer.dumps(make), batch, steps, budget, "cpu", 0, training)


def test_what_is_found_fits_and_slightly_more_does_not(plain: BatchSize) -> None:
    result = plain
    assert result.verified
    assert len(result.training.probes) <= 6
    found = result.largest
    above = found + max(1, int(0.03 * found))
    assert result.training.too_large is not None
    assert found < result.training.too_large <= above
    with gpuheap.Isolate() as own:
        probe = own.call(run, order(steps.make_step, found, 8 * MIB, steps=20)).probe
        assert (probe.verdict, probe.steps) == (FITS, 20)
    with gpuheap.Isolate() as own:
        assert own.call(run, order(steps.make_step, above, 8 * MIB, steps=20)).probe.verdict == "out of memory"


def test_the_account_says_why(plain: BatchSize) -> None:
    result = plain
    text = str(result)
    assert text.startswith(f"batch size {result.batch_size} (cpu, budget 8.00 MiB)\n")
    runs = len(result.training.probes)
    assert repr(result) == f"<gpuheap.BatchSize: {result.batch_size}, verified, in {runs} runs>"
    assert f"{result.largest} fits, verified by a run: 3 steps" in text
    assert f"{result.training.too_large} (" in text
    assert "does not, verified by a run: out of memory in phase" in text
    assert f"{result.batch_size} x {result.accumulation} = {result.effective} samples a step" in text
    header = next(line for line in text.splitlines() if line.lstrip().startswith("batch  "))
    assert header.split()[:6] == ["batch", "build", "forward", "backward", "optimizer", "rest"]
    assert header.split()[6:] == ["reserved", "retries", "steps", "seconds"]
    assert 0 <= result.training.headroom < 8 * MIB
    assert (result.effective, result.learning_rate) == (8192, 3e-4)
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + len(result.training.probes)


def test_nothing_of_the_caller_is_touched() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu")
    loader = torch.utils.data.DataLoader(list(range(32)), shuffle=True)

    def make(batch_size: int) -> Any:
        data = torch.randn(batch_size, 8)
        for value in loader:
            assert value is not None

        def step() -> None:
            random.random()
            torch.rand(1)
            optimizer.zero_grad()
            scaler.scale(model(data).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    def state() -> list[bytes]:
        everything = [model.state_dict(), optimizer.state_dict(), scaler.state_dict(), model.weight.grad]
        return [_transfer.dumps(one) for one in everything]

    before = state()
    generators = random.getstate(), torch.random.get_rng_state()
    numpy = pytest.importorskip("numpy")
    numbers = numpy.random.get_state()[1].copy()
    result = find(make, 64 * 1024, most=16)
    assert result.batch_size == 16
    assert state() == before
    assert random.getstate() == generators[0]
    assert torch.equal(torch.random.get_rng_state(), generators[1])
    assert (numpy.random.get_state()[1] == numbers).all()
    # The steps of the runs were real ones, on a copy.
    assert result.training.run is not None
    assert result.training.run.optimizers == ("Adam",)


def test_runs_are_in_other_processes_and_alone_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("GPUHEAP_TEST_CALLS", str(calls))
    monkeypatch.setenv("WORLD_SIZE", "8")
    result = find(steps.make_where, start=100)
    lines = [line.split() for line in calls.read_text().splitlines()]
    assert [int(batch) for _, batch, _ in lines] == [probe.batch for probe in result.training.probes]
    assert str(os.getpid()) not in {process for process, _, _ in lines}
    assert {world for _, _, world in lines} == {"None"}
    assert os.environ["WORLD_SIZE"] == "8"
    # What decides has a process of its own, and so has what follows a failure.
    last = [process for process, _, _ in lines[-2:]]
    assert len({*last, lines[0][0]}) == 3


def test_a_process_that_was_used_measures_the_same() -> None:
    sizes = [(100, "SGD"), (40, "AdamW")]
    with gpuheap.Isolate() as used:
        for batch, optimizer in sizes:
            one = order(lambda batch, name=optimizer: steps.make_step(batch, name), batch, 64 * MIB)
            again = used.call(run, one)
            with gpuheap.Isolate() as new:
                first = new.call(run, one)
            assert again.clean
            assert again.probe.peaks == first.probe.peaks
            assert again.probe.reserved == first.probe.reserved


def test_a_process_in_which_something_stays_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("GPUHEAP_TEST_CALLS", str(calls))
    find(steps.make_leaving_step, most=16)
    processes = [line.split()[0] for line in calls.read_text().splitlines()]
    assert len(set(processes)) == len(processes) == 2


def test_phases_are_measured_as_they_are() -> None:
    with gpuheap.Isolate() as own:
        probe = own.call(run, order(steps.make_step, 512, None)).probe
    parameters = 4 * (64 * 256 + 256 + 256 * 256 + 256)
    data, activation = 4 * 512 * 64, 4 * 512 * 256
    assert probe.held["parameters"] == parameters
    assert probe.held["optimizer state"] == 2 * parameters + 4 * 4
    assert probe.held["gradients"] == parameters
    assert probe.start == sum(probe.held.values())
    assert probe.held["other tensors"] == data
    assert probe.peaks["build"] == parameters + data
    # Two layers, a ReLU after each and the square; the ReLUs' results are saved, those of the layers are not.
    first = probe.peaks["forward, first step"] - parameters - data
    assert 3 * activation <= first <= 4 * activation + 4096
    # Gradients of before are there in the second step, while the first had none.
    assert probe.peaks["forward"] == probe.peaks["forward, first step"] + 3 * parameters + 4 * 4
    assert probe.optimizers == ("AdamW",)
    assert {"backward 0", "backward 1", "backward 2"} <= set(probe.peaks)


def test_the_kink_is_seen() -> None:
    # Small batches see the optimizer only: the sum of two of them is a level line.
    result = find(steps.make_kinked_step, 40 * MIB)
    whole = [probe.peak for probe in result.training.probes]
    assert whole[0] < 32 * MIB
    assert result.verified
    assert len(whole) <= 5


def test_memory_that_hardly_depends_on_the_batch_is_bounded_by_most() -> None:
    result = find(steps.make_indifferent_step, most=1000)
    assert result.batch_size == 1000
    assert result.verified
    assert "1000 is the most that was allowed" in str(result)
    assert len(result.training.probes) <= 3


def test_not_even_one_fits(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(gpuheap.BatchSizeError) as caught:
        find(steps.make_step, "1MiB")
    error = caught.value
    assert [probe.batch for probe in error.probes] == [8, 1, 1]
    assert "Batch size 1 does not fit into the budget of 1.00 MiB on cpu: it takes " in error.message
    need = parse_bytes(error.message.partition("it takes ")[2].partition(",")[0])
    assert abs(need - error.probes[-1].reserved) < 0.01 * need
    assert "optimizer state" in error.message
    assert error.hint is not None
    assert error.hint.startswith("an optimizer with less state")
    assert capfd.readouterr().err == ""


def test_a_start_that_is_too_high_comes_down() -> None:
    result = find(steps.make_step, start=4000)
    assert not result.training.probes[0].fits
    assert result.training.run is not None
    assert len(result.training.probes) <= 6


def test_one_and_not_sixteen() -> None:
    def make(batch_size: int) -> Any:
        return lambda: torch.zeros(batch_size, MIB)

    result = find(make, "5MiB", evaluate=None)
    assert (result.batch_size, result.training.too_large) == (1, 2)
    assert result.verified


def test_multiples_and_most() -> None:
    result = find(steps.make_step, multiple_of=32, start=NEAR)
    assert result.batch_size % 32 == 0
    assert result.training.too_large == result.batch_size + 32
    assert find(steps.make_step, multiple_of=32, start=64, most=70).batch_size == 64


# What fits, and what does not.


def test_an_error_of_the_program_is_no_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        find(steps.make_wrong_shape)
    assert "support_batch.py" in str(caught.value.__cause__)
    # No frame of gpuheap in it.
    assert "_batch/probe" not in str(caught.value.__cause__)


def test_a_step_that_swallows_its_failures_does_not_fit() -> None:
    with gpuheap.Isolate() as own:
        assert own.call(run, order(steps.make_swallowing_step, 100, 8 * MIB)).probe.fits
        probe = own.call(run, order(steps.make_swallowing_step, 4000, 8 * MIB)).probe
    assert probe.verdict == "retries"
    assert probe.retries > 0


def test_steps_that_only_begin_to_count_later_are_waited_for() -> None:
    with gpuheap.Isolate() as own:
        probe = own.call(run, order(steps.make_late_step, 8, None)).probe
    assert probe.steps == 3
    assert probe.held["optimizer state"] >= 2 * probe.held["parameters"]


def test_an_evaluation_that_does_not_fit_leaves_training_alone() -> None:
    both = find(steps.make_step, start=64, most=64, evaluate=steps.make_large_evaluation)
    assert both.batch_size == 64
    assert both.eval_batch_size is None
    assert both.evaluation is not None
    assert both.evaluation.largest is None
    assert "evaluation: batch size none fits" in str(both)


def test_an_evaluation_has_a_size_of_its_own() -> None:
    result = find(steps.make_step, start=64, most=64, evaluate=steps.make_evaluation)
    assert result.eval_batch_size == 64
    assert result.evaluation is not None
    assert result.evaluation.verified
    assert result.evaluation.run is not None
    assert result.training.run is not None
    assert result.evaluation.run.peak < result.training.run.peak


def test_what_something_else_will_hold_is_left_free() -> None:
    gradients = 4 * (64 * 256 + 256 + 256 * 256 + 256)
    plain, buckets, same = (
        find(steps.make_step, start=64, most=64, extra=extra).training.run for extra in (0, "ddp", gradients)
    )
    assert plain is not None
    assert buckets is not None
    assert same is not None
    assert buckets.reserved == same.reserved == plain.reserved + gradients


def test_nothing_is_allocated() -> None:
    with pytest.raises(gpuheap.Error, match="allocated nothing on `cpu`"):
        find(steps.make_idle)
    with pytest.raises(gpuheap.Error, match="expected a function that does one step"):
        find(steps.make_nothing)


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gpuheap.BatchSizeError, match=r"No batch size was found after 0.001 s"):
        find(steps.make_step, timeout=0.001)
    real = Runs.run

    def until_64(self: Runs, make: bytes, batch: int, *args: Any, **settings: Any) -> Probe:
        if batch > 64:
            raise gpuheap.IsolateTimeout("The call took longer")
        return real(self, make, batch, *args, **settings)

    monkeypatch.setattr(Runs, "run", until_64)
    result = find(steps.make_step, start=64)
    assert result.largest == 64
    assert not result.verified
    assert "after 1800 s, the limit, in a run of" in str(result)
    assert "the largest that fits lies between 64 and 65536" in str(result)


def test_the_end_of_the_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Search
    monkeypatch.setattr("gpuheap._batch.run.Search", lambda *args: real(*args, probes=1))
    result = find(steps.make_step)
    assert not result.verified
    assert len(result.training.probes) == 1
    assert "calculated, not run:" in str(result)


def test_learning_rates_follow_the_optimizer_that_was_seen() -> None:
    result = find(steps.make_sgd_step, learning_rate=(0.1, 32), start=64, most=64)
    assert result.learning_rate == pytest.approx(0.1 * result.batch_size / 32)
    assert result.learning_rate_rule is not None
    assert result.learning_rate_rule.startswith("linear for SGD")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 1}, "`steps` is 1, expected at least 2: the optimizer's state is made in the first step"),
        ({"start": 0}, "`start` is 0"),
        ({"most": 3, "multiple_of": 8}, "`most` is 3, expected at least 8"),
        ({"target": 0}, "`target` is 0"),
        ({"timeout": 0}, "`timeout` is 0"),
        ({"learning_rate": 0.1}, "for which batch"),
        ({"evaluate": 3}, "`evaluate` is 3"),
        ({"extra": "much"}, "`much` is not an amount of memory"),
        ({"budget": "all"}, "`all` is not an amount of memory"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        find(steps.make_step, **settings)


def test_devices() -> None:
    with pytest.raises(gpuheap.Error, match="say how much to use"):
        find(steps.make_step, None)
    if not torch.cuda.is_available():
        # The device is the CPU, though nobody has said so.
        with pytest.raises(gpuheap.Error, match="say how much to use"):
            gpuheap.find_batch_size(steps.make_step, quiet=True)
    with pytest.raises(gpuheap.Error, match="is not a device"):
        meter_for("gpu7")
    with pytest.raises(gpuheap.Error, match="cannot measure `meta`"):
        meter_for("meta")
    if not torch.cuda.is_available():
        with pytest.raises(gpuheap.Error, match="is not there"):
            meter_for("cuda:7")


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    gpuheap.find_batch_size(steps.make_step, "8MiB", device="cpu", most=8)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpuheap: batch 8 fits: ")


# The meters.


def test_the_cpu_meter_counts_every_storage_once_and_to_its_end() -> None:
    meter = CpuMeter()
    meter.begin(None)
    try:
        one = torch.zeros(1000)
        view = one.view(10, 100)[3:]
        assert meter.counts() == (4000, 4000, 4000)
        del one
        assert meter.counts().allocated == 4000
        del view
        assert meter.counts() == (0, 4000, 4000)
        weight = torch.nn.Parameter(torch.ones(100))
        # Saved for backward, with no name in Python.
        loss = weight.exp().sum()
        assert meter.counts().allocated == 400 + 400 + 4
        loss.backward()
        del loss
        assert meter.counts().allocated == 400 + 400
        grown = torch.zeros(10)
        grown.resize_(1000)
        assert meter.counts().allocated == 800 + 4000
        parts = torch.arange(100).split(10)
        assert meter.counts().allocated == 4800 + 800
        del weight, grown, parts
    finally:
        assert meter.end()


def test_the_cpu_meter_refuses_what_passes_the_budget() -> None:
    meter = CpuMeter()
    meter.begin(5000)
    try:
        kept = torch.zeros(1000)
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"3\.91 KiB are held"):
            torch.zeros(1000)
        assert meter.failures() == 1
        assert meter.counts().allocated == 4000
        assert len(kept) == 1000
    finally:
        meter.end()


def test_spill_is_told_from_what_others_do() -> None:
    gib = 1 << 30
    # All is well: what was taken is what the device has less.
    assert spilled_bytes(20 * gib, 10 * gib, 10 * gib, 24 * gib) == 0
    # Context and libraries take some, too.
    assert spilled_bytes(20 * gib, 9 * gib, 10 * gib, 24 * gib) == 0
    # More was taken than there was.
    assert spilled_bytes(20 * gib, 0, 26 * gib, 24 * gib) == 6 * gib
    # Less than there was, but the device is full and did not shrink by as much: others came in between.
    assert spilled_bytes(20 * gib, gib // 10, 22 * gib, 24 * gib) > 2 * gib
    # Another program gave memory back meanwhile, and there is room.
    assert spilled_bytes(10 * gib, 8 * gib, 6 * gib, 24 * gib) == 0


class FakeCuda:
    """As much of `torch.cuda` as the meter uses: a card of 24 GiB, of which 22 GiB are free."""

    total = 24 << 30
    free = 22 << 30

    def __init__(self) -> None:
        self.fraction = 1.0
        self.stats: dict[str, int] = {"num_alloc_retries": 3, "num_ooms": 1}
        self.reserved = 0

    def set_device(self, index: int) -> None:
        assert index == 1

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return self.free, self.total

    def get_device_properties(self, index: int) -> Any:
        return type("Properties", (), {"total_memory": self.total})

    def empty_cache(self) -> None:
        self.reserved = 0

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.fraction = fraction

    def memory_stats(self, index: int) -> dict[str, int]:
        return self.stats

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def reset_peak_memory_stats(self, index: int) -> None:
        self.stats = {**self.stats, "allocated_bytes.all.peak": 0, "reserved_bytes.all.peak": 0}

    def synchronize(self, index: int) -> None:
        pass


def test_the_cuda_meter() -> None:
    cuda = FakeCuda()
    meter = CudaMeter(type("Torch", (), {"cuda": cuda, "_C": None}), 1)
    for budget in (8 << 30, (8 << 30) + 1, 123_456_789, 5_000_000_001):
        meter.begin(budget)
        assert int(cuda.fraction * cuda.total) == budget
    meter.begin(None)
    assert int(cuda.fraction * cuda.total) == cuda.free
    # More than there is cannot be asked for.
    meter.begin(1 << 40)
    assert cuda.fraction == 1.0
    # What was before the run is not its own.
    assert meter.failures() == 0
    cuda.stats = {"num_alloc_retries": 5, "num_ooms": 1, "allocated_bytes.all.current": 5}
    cuda.stats |= {"allocated_bytes.all.peak": 9, "reserved_bytes.all.peak": 12}
    assert meter.failures() == 2
    assert meter.counts() == (5, 9, 12)
    assert meter.counts() == (5, 0, 0)
    cuda.free, cuda.reserved = 20 << 30, 1 << 30
    assert meter.outside() == 1 << 30
    assert meter.spilled() == 0
    assert meter.end()


def test_the_default_budget_is_what_is_free_less_libraries() -> None:
    runs = Runs(None, None, 3, 0, 60, quiet=True)
    runs._learn_budget(Probe(8, FITS, free=20 << 30, outside=1 << 30))
    assert runs.budget == (19 << 30) - (64 << 20)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    result = gpuheap.find_batch_size(steps.make_gpu_step, "4GiB", most=1 << 24, quiet=True)
    assert result.verified
    assert result.training.device.startswith("cuda")
    for batch, fits in ((result.largest, True), (result.training.too_large, False)):
        with gpuheap.Isolate() as own:
            again = Order(_transfer.dumps(steps.make_gpu_step), batch or 0, 20, 4096 * MIB, "cuda", 0, True)
            assert own.call(run, again).probe.fits == fits
