"""`gpuheap.release` with JAX and TensorFlow on a GPU, by their surfaces; with the real ones: `test_frameworks_*`."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from gpuheap import _device
from gpuheap.release import Released, release

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the frameworks that it makes, whatever is loaded in this process."""
    for name in ("torch", "cupy", "jax", "jax._src.xla_bridge", "tensorflow", "keras", "tf_keras", "IPython"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow.python.eager.context", raising=False)


def status(released: Released) -> dict[str, str]:
    return {step.name: step.status for step in released.steps}


def step_of(released: Released, name: str) -> Any:
    return next(step for step in released.steps if step.name == name)


class FakeArray:
    def __init__(self, bytes: int) -> None:
        self.nbytes = bytes
        self.deleted = False

    def delete(self) -> None:
        self.deleted = True

    def is_deleted(self) -> bool:
        return self.deleted


class FakeClient:
    """What JAX runs on: one device, whose pool has taken 60 GiB, and two arrays of 1 GiB."""

    def __init__(self, platform: str, *, counts: bool) -> None:
        self.platform = platform
        self.counts = counts
        self.arrays = [FakeArray(GIB), FakeArray(GIB)]

    def live_arrays(self) -> list[FakeArray]:
        return self.arrays

    def local_devices(self) -> list[Any]:
        return [types.SimpleNamespace(memory_stats=self.counters)]

    def counters(self) -> dict[str, int] | None:
        if not self.counts:
            return None
        return {"bytes_in_use": sum(one.nbytes for one in self.arrays if not one.deleted), "pool_bytes": 60 * GIB}


class FakeJax:
    """JAX with a GPU and the host, and a driver that tells of 80 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.started = True
        self.clients = {"cuda": FakeClient("cuda", counts=True), "cpu": FakeClient("cpu", counts=False)}
        jax = types.ModuleType("jax")
        jax.clear_caches = lambda: self.calls.append("caches")  # type: ignore[attr-defined]
        jax.effects_barrier = lambda: self.calls.append("barrier")  # type: ignore[attr-defined]
        bridge = types.ModuleType("jax._src.xla_bridge")
        bridge.backends_are_initialized = lambda: self.started  # type: ignore[attr-defined]
        bridge.backends = lambda: self.calls.append("backends") or self.clients  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jax", jax)
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
        monkeypatch.setattr(_device, "nvml_free", lambda: (18 * GIB, 80 * GIB))


def test_what_jax_holds_is_told_by_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJax(monkeypatch)
    released = release()
    assert [call for call in fake.calls if call != "backends"] == ["barrier", "caches"]
    # Buffers only on request: the program may use them.
    assert not any(one.deleted for one in fake.clients["cuda"].arrays)
    assert released.by_class == {"JAX": 2 * GIB}
    assert (released.after.reserved, released.after.allocated) == (60 * GIB, 2 * GIB)
    assert "device free: 18.0 GiB before, 18.0 GiB now, of 80.0 GiB (all GPUs, by NVML)" in str(released)


def test_arrays_of_every_platform_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJax(monkeypatch)
    released = release(jax_buffers=True)
    assert all(one.deleted for client in fake.clients.values() for one in client.arrays)
    step = step_of(released, "JAX's live arrays")
    assert (step.remark, step.allocated_bytes, step.reserved_bytes) == ("4 arrays, 4.00 GiB", 2 * GIB, 0)
    assert released.by_class == {}
    assert status(release(jax_buffers=True))["JAX's live arrays"] == "skipped"


def test_a_jax_that_was_only_imported_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJax(monkeypatch)
    fake.started = False
    released = release(jax_buffers=True)
    assert fake.calls == []
    assert {status(released)[name] for name in ("JAX's live arrays", "JAX's compiled functions")} == {"skipped"}


def test_a_jax_that_keeps_its_backends_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeJax(monkeypatch)
    arrays = [FakeArray(GIB)]
    sys.modules["jax"].live_arrays = lambda: arrays  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "jax._src.xla_bridge")
    released = release(jax_buffers=True)
    assert fake.calls == ["barrier", "caches"]
    assert arrays[0].deleted
    assert step_of(released, "JAX's live arrays").remark == "1 array, 1.00 GiB"


class FakeTensorFlow:
    """TensorFlow with one GPU, on which it has handed out 3 GiB, and Keras, which keeps 1 GiB of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.taken = 3 * GIB
        tensorflow, keras = types.ModuleType("tensorflow"), types.ModuleType("keras")
        keras.backend = types.SimpleNamespace(clear_session=self.clear)  # type: ignore[attr-defined]
        devices = [types.SimpleNamespace(name="/device:GPU:0")]
        tensorflow.config = types.SimpleNamespace(  # type: ignore[attr-defined]
            list_logical_devices=lambda kind: devices if kind == "GPU" else [],
            experimental=types.SimpleNamespace(
                reset_memory_stats=self.calls.append, get_memory_info=lambda name: {"current": self.taken}
            ),
        )
        monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
        monkeypatch.setitem(sys.modules, "keras", keras)
        monkeypatch.setattr(_device, "nvml_free", lambda: None)

    def clear(self) -> None:
        self.calls.append("session")
        self.taken -= GIB


def test_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTensorFlow(monkeypatch)
    released = release()
    assert fake.calls == ["session", "GPU:0"]
    assert step_of(released, "Keras' session").allocated_bytes == GIB
    assert released.by_class == {"TensorFlow": 2 * GIB}


def test_an_allocator_of_tensorflow_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTensorFlow(monkeypatch)

    def broken(name: str) -> Any:
        raise ValueError(f"no statistics of {name}")

    sys.modules["tensorflow"].config.experimental.get_memory_info = broken
    released = release()
    assert not released.failed
    assert released.by_class == {}
    assert fake.calls == ["session", "GPU:0"]


def test_tensorflow_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTensorFlow(monkeypatch)
    context = types.SimpleNamespace(context_safe=lambda: None)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)
    # Starting it would take the memory of every GPU.
    assert status(release())["TensorFlow's statistics"] == "skipped"
    assert fake.calls == ["session"]
