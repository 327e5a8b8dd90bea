"""Tensors and CUDA in processes of their own."""

from __future__ import annotations

from typing import Any

import pytest

from gpuheap import Isolate, isolate

torch = pytest.importorskip("torch")


def views() -> Any:
    base = torch.arange(1_000_000.0)
    return base[:3], base[::400_000]


def trained() -> Any:
    model = torch.nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    return model, loss


def echo(value: Any) -> Any:
    return value


def on_gpu(size: int) -> Any:
    tensor = torch.ones(size, device="cuda")
    return {"sum": tensor.sum(), "model": torch.nn.Linear(2, 2, device="cuda"), "half": tensor[:2].half()}


def out_of_memory() -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def test_tensors_come_back() -> None:
    first, second = isolate(views)
    assert first.tolist() == [0, 1, 2]
    assert second.tolist() == [0, 400_000, 800_000]
    assert first.untyped_storage().nbytes() == 12


def test_models_come_back_without_graphs() -> None:
    model, loss = isolate(trained)
    assert type(model) is torch.nn.Linear
    assert isinstance(model.weight, torch.nn.Parameter)
    assert model.weight.requires_grad
    assert not loss.requires_grad


def test_kinds_of_tensors() -> None:
    sent = [
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.eye(2).to_sparse(),
        torch.empty(0, 3),
        torch.tensor(1 + 2j),
        torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
    ]
    with Isolate() as own:
        for tensor in sent:
            got = own.call(echo, tensor)
            assert type(got) is type(tensor)
            assert got.dtype == tensor.dtype
            assert got.stride() == tensor.stride() if tensor.layout is torch.strided else got.is_sparse
            assert torch.equal(got.to_dense() if got.is_sparse else got, tensor.to_dense() if got.is_sparse else tensor)
            assert got.requires_grad == tensor.requires_grad


@pytest.mark.gpu
def test_device_memory_is_given_back() -> None:
    here = torch.ones(1, device="cuda")
    with Isolate() as own:
        before, _ = torch.cuda.mem_get_info()
        result = own.call(on_gpu, 1 << 28)
        during, _ = torch.cuda.mem_get_info()
        assert before - during > 1 << 30
    after, _ = torch.cuda.mem_get_info()
    assert abs(after - before) < 64 << 20
    assert result["sum"].item() == 1 << 28
    assert {result["sum"].device.type, result["half"].device.type, result["model"].weight.device.type} == {"cpu"}
    assert here.item() == 1


@pytest.mark.gpu
def test_out_of_memory_comes_back_as_itself() -> None:
    before, _ = torch.cuda.mem_get_info()
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        isolate(out_of_memory)
    assert abs(torch.cuda.mem_get_info()[0] - before) < 64 << 20


@pytest.mark.gpu
def test_a_tensor_of_the_gpu_is_sent_as_a_copy() -> None:
    got = isolate(echo, torch.arange(3, device="cuda"))
    assert (got.tolist(), got.device.type) == ([0, 1, 2], "cpu")
