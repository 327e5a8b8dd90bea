"""`gpuheap.release` and `gpuheap.scope` on a real device."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest

from gpuheap._bytes import bytes_text
from gpuheap._device import nvml_free
from gpuheap.release import release
from gpuheap.scope import BudgetExceeded, LeakReport, scope

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def session(torch: Any) -> tuple[Any, Any]:
    """A model with an optimizer that has taken its first step, as a notebook has it."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    # What the driver loads for the first use of a library stays loaded: no memory of the program.
    torch.fft.fft(torch.randn(1 << 16, device="cuda"))
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.randn(64, 64, device="cuda") @ torch.randn(64, 64, device="cuda")
    torch.empty(MIB, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)
    return model, optimizer


def run_out(torch: Any, model: Any, kept: list[Any]) -> None:
    """A cell that fails: activations in local variables, a cycle, cuFFT plans, pinned memory, a side stream."""
    activations = []

    class Node:
        pass

    node: Any = Node()
    node.me, node.tensor = node, torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")
    kept.append(weakref.ref(other))
    torch.fft.fft(torch.randn(1 << 16, device="cuda"))
    host = torch.empty(256 * MIB, dtype=torch.uint8).pin_memory()
    activations.append(host.to("cuda", non_blocking=True))
    while True:
        activations.append(model(torch.randn(1 << 18, 4096, device="cuda")))


def test_everything_but_the_model_comes_back_after_out_of_memory(torch: Any) -> None:
    model, optimizer = session(torch)
    release()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    nvml_before = nvml_free()
    weights = [parameter.detach().clone().cpu() for parameter in model.parameters()]
    kept: list[Any] = []
    try:
        run_out(torch, model, kept)
    except torch.OutOfMemoryError as error:
        # What a notebook does.
        sys.last_exc = sys.last_value = error  # type: ignore[attr-defined, unused-ignore]
        sys.last_traceback = error.__traceback__
        mine = error
    full = torch.cuda.mem_get_info()[0]
    nvml_full = nvml_free()
    released = release()
    after = torch.cuda.mem_get_info()[0]
    nvml_after = nvml_free()
    print("\n" + str(released))
    assert nvml_before is not None and nvml_full is not None and nvml_after is not None
    print(f"device free: before {bytes_text(before)}, full {bytes_text(full)}, now {bytes_text(after)}")
    print(f"difference to before the call: {bytes_text(before - after)}")
    print(f"table {released.device_bytes}, cudaMemGetInfo {after - full}, NVML {nvml_after[0] - nvml_full[0]}")
    assert before - after < 64 * MIB
    assert sum(step.device_bytes for step in released.steps) == released.device_bytes == after - full
    assert abs((nvml_after[0] - nvml_full[0]) - released.device_bytes) < 8 * MIB
    assert not released.failed
    assert kept[0]() is None
    assert mine.__traceback__ is not None
    # The model is as it was, and trains on.
    assert all(torch.equal(old, new.cpu()) for old, new in zip(weights, model.parameters(), strict=True))
    model(torch.randn(8, 4096, device="cuda")).mean().backward()
    optimizer.step()


def test_what_is_held_is_named_by_class(torch: Any) -> None:
    model, optimizer = session(torch)
    kept = {"features": torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")}
    released = release()
    print("\n" + str(released))
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert released.by_class["parameters"] == parameters
    assert released.by_class["optimizer state"] >= 2 * parameters
    assert sum(released.by_class.values()) == released.after.allocated
    assert any("'kept'['features']" in path for one in released.largest for path in one.holders), str(released)
    assert kept and optimizer


def test_captured_graphs_still_replay(torch: Any) -> None:
    weight = torch.randn(1024, 1024, device="cuda")
    x = torch.randn(1024, 1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = x @ weight
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ weight
    graph.replay()
    expected = y.clone()
    released = release()
    assert "cuBLAS workspaces (1 captured CUDA graph may use them)" in " ".join(str(released).split())
    filler = [torch.full((MIB,), 7.0, device="cuda") for _ in range(64)]
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected)
    assert filler


def test_a_side_stream_is_no_leak(torch: Any) -> None:
    side = torch.cuda.Stream()
    with scope("prefetch", on_leak="raise"):
        tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            tensor.add_(1)
        tensor.record_stream(side)
        del tensor
        # Freed, but its memory waits for the other stream at this moment.
    torch.cuda.synchronize()


def test_sites_out_of_the_allocation_history(torch: Any) -> None:
    reports: list[LeakReport] = []
    kept = []
    torch.cuda.memory._record_memory_history(max_entries=10_000, stacks="python")
    try:
        with scope("step", on_leak=reports.append):
            kept.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert kept
    site = reports[0].survivors[0].site
    assert site is not None and site.startswith("test_gpu_release.py:"), site


def test_a_budget_on_the_device(torch: Any) -> None:
    kept = []
    with pytest.raises(BudgetExceeded):
        with scope("step", "256 MiB"):
            while True:
                kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
    assert len(kept) == 8
    # A backward pass allocates on a thread of its own.
    weight = torch.ones(64 * MIB, device="cuda", requires_grad=True)
    loss = (weight * 2).sum()
    with pytest.raises(BudgetExceeded):
        with scope("backward", "128 MiB"):
            loss.backward()
