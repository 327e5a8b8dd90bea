"""Each check of `gpuheap.doctor`: one program that has what is looked for, and one that looks like it and has not.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import copy
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import support_doctor as programs
from gpuheap._doctor import device, habits, loading, parameters
from gpuheap._doctor.operations import Transfer
from gpuheap._doctor.report import Report
from gpuheap._doctor.sites import Site, Stack
from gpuheap._doctor.subject import Item
from gpuheap.doctor import doctor

MIB = 1 << 20
KEPT: list[Any] = []


@pytest.fixture(scope="module")
def torch() -> Any:
    return programs.quiet_torch()


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()
    gc.collect()


def examine(model: Any, step: Callable[..., object], **settings: Any) -> Report:
    """Few steps: these checks are not about growth."""
    return doctor(model, step, quiet=True, **{"steps": 4, "max_steps": 4, **settings})


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


def line_of(function: Callable[..., Any], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


# Parameters


def test_float64_parameters(torch: Any) -> None:
    model = programs.net(torch)
    model[2].double()
    report = examine(model, lambda: None)
    assert kinds(report) == {"float64_parameters"}
    assert report.findings[0].bytes == (32 * 32 + 32) * 8
    assert "`2.weight`" in report.findings[0].evidence[0]


def test_float32_among_bfloat16(torch: Any) -> None:
    model = programs.net(torch).bfloat16()
    model[0].float()
    assert kinds(examine(model, lambda: None)) == {"mixed_parameter_types"}


def test_norms_and_adapters_in_float32_are_fine(torch: Any) -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).bfloat16()
    model[1].float()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    model.add_module("adapter", nn.Linear(64, 8))
    assert kinds(examine(model, lambda: None)) == set()


def test_buffers_larger_than_parameters(torch: Any) -> None:
    model = programs.net(torch)
    model.register_buffer("mask", torch.ones(1024, 1024).tril(), persistent=False)
    report = examine(model, lambda: None)
    assert kinds(report) == {"large_buffers"}
    assert "`mask`, is [1024, 1024] of float32" in report.findings[0].evidence[1]
    assert "not saved" in report.findings[0].evidence[1]


def test_running_statistics_are_fine(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32))
    assert kinds(examine(model, lambda: None)) == set()


def item(name: str, device_: str, size: int = 400, **fields: Any) -> Item:
    key = hash(name)
    values = {"dtype": "float32", "shape": (10, 10), "requires_grad": True, **fields}
    return Item(name, False, key, (key,), 0, size, device=device_, **values)


def test_parameters_left_on_the_host() -> None:
    away, host = [item(f"w{i}", "cuda:0") for i in range(5)], [item("head", "cpu")]
    assert [finding.kind for finding in parameters.places(away + host)] == ["parameters_on_host"]
    assert parameters.places(away) == parameters.places(host) == []


def test_parameters_without_a_gradient(torch: Any) -> None:
    model = programs.net(torch)
    model.add_module("unused", torch.nn.Linear(32, 32))

    def step() -> None:
        out = model[0](torch.randn(4, 32))
        model[4](model[2](out)).sum().backward()
        model.zero_grad()

    report = examine(model, step)
    assert kinds(report) == {"unused_parameters"}
    assert "`unused.weight`" in report.findings[0].evidence[0]


def test_gradients_that_are_used_up_at_once_count(torch: Any) -> None:
    model = programs.net(torch)

    def use(parameter: Any) -> None:
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(use)
    assert kinds(examine(model, lambda: model(torch.randn(4, 32)).sum().backward())) == set()


def test_gradients_held_although_nothing_trains(torch: Any) -> None:
    model = programs.net(torch)
    model(torch.randn(4, 32)).sum().backward()
    model.eval()

    def step() -> None:
        with torch.no_grad():
            model(torch.randn(4, 32))

    assert kinds(examine(model, step)) == {"gradients_held"}
    model.zero_grad()
    assert kinds(examine(model, step)) == set()


# Optimizers


def test_state_of_frozen_parameters(torch: Any) -> None:
    model = programs.net(torch)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model[0].requires_grad_(False)

    def step() -> None:
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    report = examine(model, step)
    assert kinds(report) == {"state_of_frozen_parameters"}
    assert "`0.weight`" in report.findings[0].evidence[0]


def test_an_optimizer_of_an_earlier_model(torch: Any) -> None:
    old = programs.net(torch)
    KEPT.append(torch.optim.Adam(old.parameters(), 1e-3))
    old(torch.randn(4, 32)).sum().backward()
    KEPT[0].step()
    KEPT[0].zero_grad()
    del old
    report = examine(*programs.plain_adam(torch))
    assert kinds(report) == {"state_of_lost_parameters"}
    assert any("KEPT[0]" in path for path in report.findings[0].holders), str(report)


def test_a_layer_replaced_after_the_optimizer_was_made(torch: Any) -> None:
    model = programs.net(torch)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model[4] = torch.nn.Linear(32, 5)

    def step() -> None:
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    report = examine(model, step)
    assert kinds(report) == {"state_of_lost_parameters"}
    assert "2 parameters" in report.findings[0].title


def test_two_models_with_an_optimizer_each_are_fine(torch: Any) -> None:
    maker, judge = programs.net(torch, 32), programs.net(torch, 1)
    optimizers = [torch.optim.Adam(one.parameters(), 1e-3) for one in (maker, judge)]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
            judge(maker(torch.randn(8, 32))).mean().backward()
            optimizer.step()

    assert kinds(examine(maker, step)) == set()
    assert kinds(examine([maker, judge], step)) == set()


# Copies


def test_a_model_that_was_loaded_twice(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    KEPT.append(copy.deepcopy(model))
    report = examine(model, step)
    assert kinds(report) == {"second_copy"}
    assert any("KEPT[0]" in path for path in report.findings[0].holders), str(report)


def test_a_checkpoint_that_is_still_in_memory(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    KEPT.append({"model": {f"module.{name}": value.clone() for name, value in model.state_dict().items()}})
    report = examine(model, step)
    assert kinds(report) == {"checkpoint_kept"}
    assert any("KEPT[0]['model']" in path for path in report.findings[0].holders), str(report)


def test_copies_that_the_steps_use_are_fine(torch: Any) -> None:
    model = programs.net(torch)
    target, average = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        x = torch.randn(8, 32)
        with torch.no_grad():
            wanted = target(x)
        (model(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)

    report = examine(model, step)
    assert kinds(report) == set(), str(report)
    assert {one.kind for one in report.information} == {"second_copy"}


def test_equal_tables_in_every_layer(torch: Any) -> None:
    model = programs.net(torch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for layer in (model[0], model[2]):
        layer.register_buffer("table", torch.arange(4096.0))

    def step() -> None:
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    report = examine(model, step)
    assert kinds(report) == {"equal_weights"}
    model[2].table = model[0].table
    assert kinds(examine(model, step)) == set()


def test_layers_made_as_copies_of_each_other_are_fine(torch: Any) -> None:
    first = torch.nn.Linear(64, 64)
    model = torch.nn.Sequential(first, torch.nn.ReLU(), copy.deepcopy(first))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert kinds(examine(model, step)) == set()


# Pruning


def test_pruning_masks(torch: Any) -> None:
    prune = pytest.importorskip("torch.nn.utils.prune")
    model = programs.net(torch)
    prune.l1_unstructured(model[0], "weight", 0.5)
    report = examine(model, lambda: model(torch.randn(4, 32)).sum().backward())
    assert kinds(report) == {"pruning_masks"}
    assert report.findings[0].bytes == 2 * 32 * 32 * 4
    prune.remove(model[0], "weight")
    model.zero_grad()
    assert kinds(examine(model, lambda: model(torch.randn(4, 32)).sum().backward())) == set()


def test_parametrizations(torch: Any) -> None:
    parametrize = pytest.importorskip("torch.nn.utils.parametrize")

    class Masked(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(32, 32))

        def forward(self, weight: Any) -> Any:
            return weight * self.mask

    model = programs.net(torch)
    parametrize.register_parametrization(model[0], "weight", Masked())
    assert kinds(examine(model, lambda: model(torch.randn(4, 32)).sum().backward())) == {"parametrizations"}


def test_a_weight_norm_is_information(torch: Any) -> None:
    model = programs.net(torch)
    torch.nn.utils.parametrizations.weight_norm(model[0])
    report = examine(model, lambda: model(torch.randn(4, 32)).sum().backward())
    assert kinds(report) == set()
    assert [one.kind for one in report.information] == ["parametrizations"]


# Data loading


def dataset(torch: Any, rows: int = 64) -> Any:
    return torch.utils.data.TensorDataset(torch.randn(rows, 32), torch.randint(0, 10, (rows,)))


def test_a_batch_that_is_kept_after_its_step(torch: Any) -> None:
    model = programs.net(torch)
    loader = torch.utils.data.DataLoader(dataset(torch), batch_size=16)

    def step(batch: Any) -> None:
        model.last = batch
        model(batch[0]).sum().backward()
        model.zero_grad()

    report = examine(model, step, loader=loader)
    assert kinds(report) == {"batch_kept"}
    assert any("last" in path for path in report.findings[0].holders), str(report)


def test_batches_that_pile_up(torch: Any) -> None:
    model = programs.net(torch)
    loader = torch.utils.data.DataLoader(dataset(torch), batch_size=16)

    def step(batch: Any) -> None:
        KEPT.append(batch)
        with torch.no_grad():
            model(batch[0])

    report = doctor(model, step, loader=loader, max_steps=12, quiet=True)
    assert [(one.kind, one.pattern) for one in report.findings] == [("leak", "batches")], str(report)
    assert report.findings[0].bytes_per_step == 16 * (32 * 4 + 8)


def test_a_loader_is_begun_anew_and_leaves_nothing(torch: Any) -> None:
    model = programs.net(torch)
    seen = []

    def step(batch: Any) -> None:
        seen.append(tuple(batch[0].shape))
        with torch.no_grad():
            model(batch[0])

    loader = torch.utils.data.DataLoader(dataset(torch, 40), batch_size=16)
    report = examine(model, step, loader=loader)
    assert report.ok, str(report)
    assert seen == [(16, 32), (16, 32), (8, 32), (16, 32)]

    def endless() -> Iterator[Any]:
        while True:
            batch = torch.randn(16, 32)
            yield (batch,)

    report = examine(model, step, loader=endless())
    assert report.ok, str(report)


def test_copies_from_pageable_memory() -> None:
    stack = Stack((Site("train.py", 7, "step"),))
    pageable = [Transfer(2 * MIB, False, True, False, stack)] * 4
    found = loading.pageable_copies(pageable, 4)
    assert [(one.kind, one.bytes, one.line) for one in found] == [("pageable_copies", 2 * MIB, 7)]
    assert "`non_blocking=True`, which does nothing" in found[0].evidence[1]
    assert loading.pageable_copies([Transfer(2 * MIB, True, True, False, stack)] * 4, 4) == []
    assert loading.pageable_copies([Transfer(8, False, False, False, stack)] * 4, 4) == []


def test_samples_moved_one_by_one() -> None:
    stack = Stack((Site("data.py", 3, "__getitem__"),))
    one_by_one = [Transfer(1024, False, False, True, stack)] * 32
    found = loading.transfers_in_loader(one_by_one, 4)
    assert [(one.kind, one.function) for one in found] == [("device_tensors_in_dataset", "__getitem__")]
    assert loading.transfers_in_loader(one_by_one[:4], 4) == []


def test_steps_that_wait_for_the_loader() -> None:
    assert [one.kind for one in loading.slow_loader([0.5] * 3, [0.5] * 4, 0, True)] == ["slow_loader"]
    assert loading.slow_loader([0.01] * 3, [0.5] * 4, 0, True) == []
    assert loading.slow_loader([0.5] * 3, [0.5] * 4, 4, True) == []
    assert loading.slow_loader([0.5] * 3, [0.5] * 4, 0, False) == []


def test_batches_that_workers_keep_ready() -> None:
    assert [one.bytes for one in loading.prefetched(16, 100 * MIB, 8192 * MIB)] == [1600 * MIB]
    assert loading.prefetched(16, MIB, 8192 * MIB) == loading.prefetched(0, 100 * MIB, 8192 * MIB) == []


# Graphs and habits


def test_evaluation_without_no_grad(torch: Any) -> None:
    model, step = programs.plain_adam(torch)

    def evaluate() -> None:
        model.eval()
        model(torch.randn(8, 32)).argmax(1)
        model.train()

    report = examine(model, step, evaluate=evaluate)
    assert kinds(report) == {"evaluation_graph"}
    finding = report.findings[0]
    assert (finding.line, finding.function) == (line_of(evaluate, 2), "evaluate")
    assert finding.bytes

    def careful() -> None:
        model.eval()
        with torch.inference_mode():
            model(torch.randn(8, 32)).argmax(1)
        model.train()

    assert kinds(examine(model, step, evaluate=careful)) == set()


def test_gradients_in_evaluation_mode_that_are_used_are_fine(torch: Any) -> None:
    model = programs.net(torch).eval()

    def step() -> None:
        x = torch.randn(8, 32, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
        model(x).sum().backward()
        model.zero_grad()

    assert kinds(examine(model, step)) == set()


def test_zero_grad_that_keeps_gradients(torch: Any) -> None:
    model = programs.net(torch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()

    report = examine(model, step)
    assert kinds(report) == {"zero_grad_keeps"}
    assert report.findings[0].line == line_of(step, 1)
    assert report.findings[0].bytes == sum(one.numel() * 4 for one in model.parameters())


def test_data_parallel(torch: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.nn.DataParallel(programs.net(torch))
    assert kinds(examine(model, lambda: None)) == {"data_parallel"}


def test_empty_cache_in_every_step(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    by_name = torch.cuda.empty_cache
    count = 0

    def empties() -> None:
        step()
        torch.cuda.empty_cache()

    def empties_once() -> None:
        nonlocal count
        step()
        if not count:
            torch.cuda.empty_cache()
        count += 1

    report = examine(model, empties)
    assert kinds(report) == {"empty_cache_in_steps"}
    assert report.findings[0].line == line_of(empties, 2)
    assert torch.cuda.empty_cache is by_name
    assert kinds(examine(model, empties_once)) == set()


def test_all_steps_inside_one_autocast_under_no_grad(torch: Any) -> None:
    model = programs.net(torch).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        report = examine(model, lambda: model(torch.randn(8, 32)))
    assert kinds(report) == {"autocast_cache"}

    def step() -> None:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(8, 32))

    assert kinds(examine(model, step)) == set()


def test_a_graph_that_is_alive_between_steps(torch: Any) -> None:
    model = programs.net(torch)

    def step() -> None:
        KEPT[:] = [model(torch.randn(256, 32)).sum()]
        KEPT[0].backward(retain_graph=True)
        model.zero_grad()

    report = doctor(model, step, steps=7, max_steps=7, quiet=True)
    assert kinds(report) == {"graph_between_steps"}, str(report)
    assert f"`backward(retain_graph=True)` at test_doctor_checks.py:{line_of(step, 2)}" in " ".join(str(report).split())

    def fine() -> None:
        KEPT[:] = [model(torch.randn(256, 32)).sum()]
        KEPT[0].backward()
        model.zero_grad()

    assert kinds(doctor(model, fine, steps=7, max_steps=7, quiet=True)) == set()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_with_a_graph(torch: Any) -> None:
    model = programs.net(torch)

    def step() -> None:
        model(torch.randn(256, 32)).square().mean().backward(create_graph=True)

    report = doctor(model, step, steps=8, max_steps=8, restore=False, quiet=True)
    assert [(one.kind, one.pattern) for one in report.findings] == [("leak", "gradient graph")], str(report)
    model.zero_grad()


def test_a_hook_that_keeps_the_last_output_with_its_graph(torch: Any) -> None:
    model, step = programs.plain_adam(torch)
    features: dict[str, Any] = {}

    def keep(module: Any, inputs: Any, output: Any) -> None:
        features["last"] = output

    handle = model[2].register_forward_hook(keep)
    report = examine(model, step)
    assert kinds(report) == {"hook_keeps"}, str(report)
    assert report.findings[0].line == line_of(keep, 0)
    handle.remove()
    features.clear()

    def count(module: Any, inputs: Any, output: Any) -> None:
        features["mean"] = output.mean().item()

    model[2].register_forward_hook(count)
    assert kinds(examine(model, step)) == set()


def test_a_stored_exception(torch: Any) -> None:
    model, step = programs.plain_adam(torch)

    def fails() -> None:
        x = torch.randn(1024, 32)
        raise ValueError(f"no {x.shape}")

    try:
        fails()
    except ValueError as error:
        KEPT.append(error)
    report = examine(model, step)
    assert kinds(report) == {"stored_exception"}, str(report)
    finding = report.findings[0]
    assert (finding.bytes, finding.line) == (1024 * 32 * 4, line_of(fails, 2))
    assert any("KEPT[0]" in path for path in finding.holders)
    KEPT[:] = [str(KEPT[0])]
    assert kinds(examine(model, step)) == set()


def test_a_cache_on_a_method_that_keeps_a_model(torch: Any) -> None:
    class Old(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(7, 7))

        @functools.lru_cache  # noqa: B019 (what is looked for)
        def scale(self, n: int) -> float:
            return 1.0 / n

    model, step = programs.plain_adam(torch)
    Old().scale(3)
    report = examine(model, step)
    assert kinds(report) == {"lru_cache_on_method"}, str(report)
    assert report.findings[0].function == "scale"
    Old.scale.cache_clear()
    alive = Old()
    alive.scale(3)
    assert kinds(examine(model, step)) == set()
    Old.scale.cache_clear()


def test_garbage_in_reference_cycles(torch: Any) -> None:
    class Box:
        pass

    def tangle(x: Any) -> None:
        box: Any = Box()
        box.x = x.detach() * 2
        box.me = box

    model, step = programs.trained(torch, lambda i, model, x, out, loss: tangle(x), rows=256)
    report = doctor(model, step, max_steps=12, quiet=True)
    assert [(one.kind, one.line) for one in report.findings] == [("sawtooth", line_of(tangle, 2))], str(report)
    assert any("a reference cycle through" in path and "Box" in path for path in report.findings[0].holders), str(
        report
    )
    assert report.findings[0].bytes_per_step == 256 * 32 * 4
    gc.disable()
    try:
        report = doctor(model, step, max_steps=12, quiet=True)
        assert [(one.kind, one.pattern) for one in report.findings] == [("leak", "collector off")]
        assert not gc.isenabled()
    finally:
        gc.enable()


# The allocator's counters


def test_reserved_memory_that_grows_alone() -> None:
    flat = [(200 * MIB, (1000 + 300 * at) * MIB) for at in range(20)]
    assert [one.kind for one in device.find(flat, [200 * MIB] * 20, 0)] == ["fragmentation"]
    assert device.find([(200 * MIB, 1000 * MIB)] * 20, [200 * MIB] * 20, 0) == []
    both = [(200 * MIB + 300 * at * MIB, (1000 + 300 * at) * MIB) for at in range(20)]
    assert device.find(both, [one for one, _ in both], 300 * MIB) == []


def test_memory_that_python_does_not_see() -> None:
    grows = [(200 * MIB + at * MIB, 4096 * MIB) for at in range(20)]
    assert [one.pattern for one in device.find(grows, [200 * MIB] * 20, 0)] == ["unseen"]


def test_what_backward_was_asked_to_keep() -> None:
    assert habits.backward_words([]) is None
