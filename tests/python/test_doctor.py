"""`gpuheap.doctor` as a call: what it takes, gives back and restores, and programs that make it hard.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import gpuheap
import support_doctor as programs
from gpuheap._doctor.calls import Calls
from gpuheap._doctor.restore import Saved
from gpuheap._doctor.subject import Subject
from gpuheap._doctor.trend import Window, rises, slope, trend_of
from gpuheap.doctor import Report, doctor
from gpuheap.errors import Error


@pytest.fixture(scope="module")
def torch() -> Any:
    return programs.quiet_torch()


def examine(model: Any, step: Callable[..., object], **settings: Any) -> Report:
    return doctor(model, step, quiet=True, **{"steps": 4, "max_steps": 4, **settings})


# The report


def test_it_is_a_public_call() -> None:
    assert gpuheap.doctor is doctor
    assert "doctor" in gpuheap.__all__


def test_text_json_and_notes(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, step = programs.outputs_kept(torch)
    report = doctor(model, step, steps=8, max_steps=8)
    said = capsys.readouterr()
    assert said.out == "" and "are copied to the host" in said.err
    assert not report.ok
    text = str(report)
    assert text.startswith("gpuheap doctor: 1 finding in 8 steps (PyTorch ")
    assert "1. +2.50 KiB per step" in text
    assert "closure cell 'kept'[" in text
    assert max(len(line) for line in text.splitlines() if "held by" not in line) <= 120
    data = json.loads(report.to_json())
    assert data == report.as_dict()
    finding = data["findings"][0]
    assert finding["kind"] == "leak" and finding["bytes_per_step"] == 64 * 10 * 4
    assert finding["site"]["function"] == "step" and finding["site"]["file"].endswith("support_doctor.py")
    assert len(data["levels"]) == data["steps"] == 8
    if not torch.cuda.is_available():
        assert any("no GPU here" in note for note in report.notes)
    assert report._repr_html_().startswith("<pre>gpuheap doctor")
    assert repr(report) == "<gpuheap.doctor: leak in 8 steps>"


def test_too_few_steps_say_so(torch: Any) -> None:
    model, step = programs.outputs_kept(torch)
    report = doctor(model, step, steps=5, max_steps=5, quiet=True)
    assert report.ok
    assert any("5 steps are too few" in note for note in report.notes)


def test_the_time_ends_it(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    report = doctor(model, step, budget_seconds=1e-9, quiet=True)
    assert report.steps == 1
    assert any("the time was up" in note for note in report.notes)


def test_a_healthy_program_runs_as_many_steps_as_asked(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    assert doctor(model, step, quiet=True).steps == 12


# What it takes


def test_bad_arguments(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    for bad in ({"steps": 0}, {"max_steps": 0}, {"budget_seconds": 0}):
        with pytest.raises(ValueError, match="must be positive"):
            doctor(model, step, quiet=True, **bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`step` must be a function"):
        doctor(model, 3, quiet=True)  # type: ignore[arg-type]
    with pytest.raises(Error, match=r"needs a `torch\.nn\.Module`, or a list of them, not a int"):
        doctor(3, step, quiet=True)
    with pytest.raises(Error, match="the list is empty"):
        doctor([], step, quiet=True)
    with pytest.raises(Error, match="`loader` gave no batch at all"):
        doctor(model, lambda batch: None, loader=[], quiet=True)


def test_models_of_other_frameworks() -> None:
    layer = type("Dense", (), {"__module__": "flax.linen.linear"})()
    with pytest.raises(Error, match="this Dense is a model of JAX") as caught:
        doctor(layer, lambda: None, quiet=True)
    assert caught.value.hint is not None


# What it gives back


def state_of(torch: Any, model: Any, optimizer: Any) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers()]
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    gradients = [one.grad for one in model.parameters()]
    return [None if one is None else one.detach().clone() for one in tensors + states + gradients]


def same(torch: Any, one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("trained", [False, True], ids=["fresh", "trained"])
def test_everything_is_put_back(torch: Any, trained: bool) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model.count = 0
    model.hidden = torch.zeros(3)

    def step() -> None:
        model.train()
        model.count += 1
        model.hidden = model.hidden + random.random()
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        scheduler.step()

    if trained:
        step()
    model.eval()
    before, numbers, host = state_of(torch, model, optimizer), random.getstate(), torch.get_rng_state()
    attributes = (model.count, model.hidden.clone(), optimizer.param_groups[0]["lr"], scheduler.last_epoch)
    identities = [id(one) for one in model.parameters()]
    report = examine(model, step, optimizer=optimizer)
    assert report.ok, str(report)
    assert same(torch, before, state_of(torch, model, optimizer))
    assert random.getstate() == numbers
    assert torch.equal(torch.get_rng_state(), host)
    assert (model.count, optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (
        attributes[0],
        attributes[2],
        attributes[3],
    )
    assert torch.equal(model.hidden, attributes[1])
    assert not model.training and not model[2].training
    assert identities == [id(one) for one in model.parameters()]
    assert bool(optimizer.state) == trained
    # The next step does what it would have done.
    step()
    after = state_of(torch, model, optimizer)
    assert not same(torch, before, after)


def test_the_steps_stay_without_restore(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    before = model[0].weight.detach().clone()
    examine(model, step, restore=False)
    assert not torch.equal(before, model[0].weight)


def test_nothing_stays_in_place(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    places = [
        (torch.autograd, "backward"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.nn.Module, "zero_grad"),
        (torch.cuda, "empty_cache"),
    ]
    originals = [owner.__dict__[name] for owner, name in places]
    hooks = torch.nn.modules.module._global_forward_hooks
    frozen, threshold = gc.get_freeze_count(), gc.get_threshold()

    def fails() -> None:
        step()
        raise RuntimeError("no")

    examine(model, step)
    with pytest.raises(RuntimeError):
        examine(model, fails)
    assert [owner.__dict__[name] for owner, name in places] == originals
    assert not hooks
    assert gc.get_freeze_count() <= max(frozen, 5000) and gc.get_threshold() == threshold and gc.isenabled()
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_a_step_that_raises(torch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, step = programs.plain_adam(torch)
    model[0].double().float()
    before = model[0].weight.detach().clone()
    count = 0

    def fails() -> None:
        nonlocal count
        count += 1
        step()
        if count == 3:
            raise ValueError("third")

    with pytest.raises(ValueError, match="third") as caught:
        doctor(model, fails)
    assert torch.equal(before, model[0].weight)
    notes = "\n".join(getattr(caught.value, "__notes__", ())) or capsys.readouterr().err
    assert "gpuheap doctor: nothing found in 2 steps" in notes
    assert "the steps ended with ValueError: this report is partial" in notes


def test_data_that_ends(torch: Any) -> None:
    model = programs.net(torch)
    kept: list[Any] = []
    batches = iter([torch.randn(4, 32) for _ in range(15)])

    def step() -> None:
        with torch.no_grad():
            kept.append(model(next(batches)))

    report = doctor(model, step, quiet=True)
    assert report.steps == 15
    assert any("the program's data ended" in note for note in report.notes)
    assert [one.pattern for one in report.findings] == ["kept"], str(report)
    with pytest.raises(StopIteration):
        doctor(model, step, quiet=True)


# Programs that make it hard


def test_a_model_without_parameters(torch: Any) -> None:
    report = examine(torch.nn.Identity(), lambda: None)
    assert report.ok
    assert any("no parameters" in note for note in report.notes)
    assert any("did not call the model" in note for note in report.notes)


def test_a_step_that_replaces_the_model(torch: Any) -> None:
    model = programs.net(torch)
    box = [model]

    def step() -> None:
        box[0] = programs.net(torch)
        box[0](torch.randn(4, 32)).sum().backward()

    report = doctor(model, step, quiet=True)
    assert report.ok, str(report)
    assert any("did not call the model" in note for note in report.notes)


def test_a_step_that_replaces_parameters(torch: Any) -> None:
    model = programs.net(torch)
    before = model[0].weight.detach().clone()

    def step() -> None:
        model[0].weight = torch.nn.Parameter(torch.zeros(32, 32))
        model[2].weight.data = torch.zeros(5, 5)
        model.register_buffer("more", torch.zeros(3))
        del model[4].bias
        model[4].register_parameter("bias", None)

    report = examine(model, step)
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.requires_grad and model[2].weight.shape == (32, 32) and model[4].bias.shape == (10,)
    assert not hasattr(model, "more")
    assert not [note for note in report.notes if "not put back" in note]


class Hostile:
    """Answers no question."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError("taken for a truth value")

    def __repr__(self) -> str:
        raise RuntimeError("printed")


def test_hostile_objects(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    kept: list[Any] = []
    model.odd = Hostile()
    sys.modules["hostile"] = Hostile()  # type: ignore[assignment]
    try:

        def keeps() -> None:
            step()
            kept.append((Hostile(), torch.randn(64)))

        report = doctor(model, keeps, steps=8, max_steps=8, quiet=True)
        assert [one.kind for one in report.findings] == ["leak"], str(report)
    finally:
        del sys.modules["hostile"]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning")
def test_unusual_tensors(torch: Any) -> None:
    class Named(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") == "__get__":
                raise RuntimeError("no attribute is told")
            return super().__torch_function__(function, types, args, kwargs or {})

    model = programs.net(torch)
    model.register_buffer("sparse", torch.eye(4).to_sparse())
    model.register_buffer("shape_only", torch.empty(5, device="meta"))
    model.register_buffer("expanded", torch.zeros(1).expand(7))
    model.named = torch.zeros(3).as_subclass(Named)
    model.register_parameter("later", torch.nn.UninitializedParameter())
    model.complex = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    kept: list[Any] = []

    def step() -> None:
        kept.append(torch.eye(4).to_sparse())
        with torch.no_grad():
            model(torch.randn(4, 32))

    report = doctor(model, step, steps=8, max_steps=8, quiet=True)
    assert {one.kind for one in report.findings} <= {"leak"}, str(report)


def test_two_thousand_modules(torch: Any) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(2000)))
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        with torch.no_grad():
            model[0](torch.randn(1, 2))

    assert examine(model, step).ok
    assert count == 4


def test_shared_modules_and_cycles_of_modules(torch: Any) -> None:
    shared = torch.nn.Linear(32, 32)
    model = torch.nn.Sequential(shared, torch.nn.GELU(), shared)
    model[1].__dict__["parent"] = model
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert examine(model, step).ok


def test_a_step_with_threads(torch: Any) -> None:
    model = programs.net(torch)
    kept: dict[int, Any] = {}
    count = 0

    def work(number: int) -> None:
        with torch.no_grad():
            kept[number] = model(torch.randn(16, 32))

    def step() -> None:
        nonlocal count
        threads = [threading.Thread(target=work, args=(count + at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count += 2

    report = doctor(model, step, max_steps=12, quiet=True)
    assert [one.kind for one in report.findings] == ["leak"], str(report)
    assert any("'kept'" in path for path in report.findings[0].holders), str(report)


def test_an_interruption_waits_until_all_is_put_back(torch: Any) -> None:
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    patched = (torch.autograd.backward, torch.nn.Module.zero_grad)
    presses = [KeyboardInterrupt, KeyboardInterrupt, ValueError]

    def interrupts() -> None:
        if presses:
            raise presses.pop(0)

    saved = Saved(Subject(torch, [model]))
    with torch.no_grad():
        model.weight.zero_()
    saved._undo.append(interrupts)
    with pytest.raises(KeyboardInterrupt):
        saved.put_back()
    assert torch.equal(model.weight, before)

    presses += [KeyboardInterrupt, ValueError]
    calls = Calls(torch, None, frozenset(), [])  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), calls:
        assert torch.autograd.backward is not patched[0]
        calls._undo.append(interrupts)
    assert (torch.autograd.backward, torch.nn.Module.zero_grad) == patched


def test_a_step_that_interrupts(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    before = model[0].weight.detach().clone()

    def interrupts() -> None:
        step()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(model, interrupts)
    assert torch.equal(before, model[0].weight)


# The arithmetic


def test_windows() -> None:
    assert [(Window(n).first, Window(n).end) for n in (12, 36, 50)] == [(2, 10), (7, 33), (10, 45)]
    assert not Window(6).enough and Window(7).enough


def test_trends() -> None:
    window = Window(12)
    rising = [100 * at for at in range(12)]
    each = {at: [100] for at in range(12)}
    assert trend_of(window, each, rising).verdict == "grows"
    assert trend_of(window, each, rising).bytes_per_step == 100
    # Only the last steps: a buffer that has filled, or the step's own results.
    assert trend_of(window, {at: [100] for at in range(9, 12)}, [300] * 12, oldest_freed=3).verdict == "bounded"
    assert trend_of(window, {11: [100]}, [100] * 12).verdict == "none"
    assert trend_of(window, {5: [100]}, [0] * 5 + [100] * 7).verdict == "undecided"
    # A buffer for 30 items after 36 steps: what is freed is as old as the buffer is long.
    filled = [100 * min(at + 1, 30) for at in range(36)]
    assert trend_of(Window(36), {at: [100] for at in range(6, 36)}, filled, oldest_freed=30).verdict == "bounded"


def test_slopes() -> None:
    assert slope([0, 1, 2, 3]) == 1 and slope([5]) == 0 and slope([0, 0, 50, 0, 0]) == 0
    assert rises(Window(12), list(range(12)))
    assert not rises(Window(12), [min(at, 7) for at in range(12)])
    assert not rises(Window(12), [5] * 12)
