"""`gpuheap.doctor` on a real device: leaks with their holders, healthy programs, copies, what is put back.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from gpuheap.doctor import Report, doctor

pytestmark = pytest.mark.gpu
WIDTH = 256


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    gc.collect()


class Program:
    """A model, its optimizer, and a step of training."""

    def __init__(self, torch: Any) -> None:
        nn = torch.nn
        self.torch = torch
        layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10)]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def batch(self, rows: int = 256) -> tuple[Any, Any]:
        torch = self.torch
        return torch.randn(rows, WIDTH, device="cuda"), torch.randint(0, 10, (rows,), device="cuda")

    def train(self, rows: int = 256) -> tuple[Any, Any]:
        x, y = self.batch(rows)
        out = self.model(x)
        loss = self.torch.nn.functional.cross_entropy(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return x, out


def leaks(report: Report) -> list[str | None]:
    return [finding.pattern for finding in report.findings if finding.kind == "leak"]


def test_a_healthy_program(torch: Any) -> None:
    program = Program(torch)
    report = doctor(program.model, lambda: program.train(), quiet=True)
    assert report.ok, str(report)
    assert "cuda:0" in report.subject
    assert not any("no GPU here" in note for note in report.notes)


def test_outputs_kept(torch: Any) -> None:
    program = Program(torch)
    kept: list[Any] = []

    def step() -> None:
        kept.append(program.train()[1].detach())

    report = doctor(program.model, step, max_steps=24, quiet=True)
    assert leaks(report) == ["kept"], str(report)
    leak = report.findings[0]
    assert any("'kept'" in path for path in leak.holders), str(report)
    assert leak.function == "train"
    assert leak.bytes_per_step == 256 * 10 * 4
    assert any("more steps until the device is full" in line for line in leak.evidence)


def test_a_total_with_its_graphs(torch: Any) -> None:
    program = Program(torch)
    running: Any = 0

    def step() -> None:
        nonlocal running
        x, y = program.batch()
        running = running + torch.nn.functional.cross_entropy(program.model(x), y)

    report = doctor(program.model, step, max_steps=24, quiet=True)
    assert leaks(report) == ["total"], str(report)
    assert any("'running'" in path for path in report.findings[0].holders), str(report)
    assert report.findings[0].line == step.__code__.co_firstlineno + 3


def test_a_hook_that_keeps_tensors(torch: Any) -> None:
    program = Program(torch)
    seen: list[Any] = []
    program.model[2].register_forward_hook(lambda module, inputs, out: seen.append(out.detach().mean(0)))
    report = doctor(program.model, lambda: program.train(), max_steps=24, quiet=True)
    assert leaks(report) == ["hook"], str(report)


def test_gradients_of_a_tensor_hook(torch: Any) -> None:
    """The backward pass runs in a thread of its own, and its memory has no frames there."""
    program = Program(torch)
    seen: list[Any] = []

    def step() -> None:
        x, y = program.batch()
        out = program.model(x)
        out.register_hook(seen.append)
        torch.nn.functional.cross_entropy(out, y).backward()
        program.model.zero_grad()

    report = doctor(program.model, step, max_steps=24, quiet=True)
    assert leaks(report) == ["gradients"], str(report)
    assert report.findings[0].line == step.__code__.co_firstlineno + 4


def test_pageable_copies_and_pinned_ones(torch: Any) -> None:
    program = Program(torch)
    pageable, pinned = torch.randn(4096, WIDTH), torch.randn(4096, WIDTH).pin_memory()

    def step(batch: Any) -> None:
        with torch.no_grad():
            program.model(batch.to("cuda", non_blocking=True))

    report = doctor(program.model, step, loader=[pageable], steps=8, max_steps=8, quiet=True)
    assert [finding.kind for finding in report.findings] == ["pageable_copies"], str(report)
    assert report.findings[0].bytes == 4096 * WIDTH * 4
    assert report.findings[0].line == step.__code__.co_firstlineno + 2
    report = doctor(program.model, step, loader=[pinned], steps=8, max_steps=8, quiet=True)
    assert report.ok, str(report)


def test_a_checkpoint_on_the_device(torch: Any) -> None:
    program = Program(torch)
    checkpoint = {name: value.clone() for name, value in program.model.state_dict().items()}
    report = doctor(program.model, lambda: program.train(), steps=8, max_steps=8, quiet=True)
    assert [finding.kind for finding in report.findings] == ["checkpoint_kept"], str(report)
    assert any("'checkpoint'" in path for path in report.findings[0].holders), str(report)
    assert len(checkpoint) == 6


def test_everything_is_put_back(torch: Any) -> None:
    program = Program(torch)
    program.train()
    states = [value for state in program.optimizer.state.values() for value in state.values()]
    before = [tensor.detach().clone() for tensor in (*program.model.parameters(), *states)]
    numbers = torch.cuda.get_rng_state()
    doctor(program.model, lambda: program.train(), steps=8, max_steps=8, quiet=True)
    states = [value for state in program.optimizer.state.values() for value in state.values()]
    after = [*program.model.parameters(), *states]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.equal(torch.cuda.get_rng_state(), numbers)


def test_batches_of_many_sizes_are_no_leak(torch: Any) -> None:
    program = Program(torch)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        program.train(64 + (count * 37) % 191)

    report = doctor(program.model, step, quiet=True)
    assert leaks(report) == [], str(report)
