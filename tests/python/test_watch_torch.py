"""PyTorch's optimizers end steps; its counters, the collector and the driver as they are asked."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

import gpuheap
from gpuheap import _nvml
from gpuheap._watch.arrays import Cupy, Jax, TensorFlow
from gpuheap._watch.collector import Collector
from gpuheap._watch.steps import OptimizerSteps
from gpuheap._watch.torch import Torch

MIB = 1 << 20


class Allocator:
    """Make-believe counters of CUDA devices, and what PyTorch has around them."""

    def __init__(self, torch: Any = None) -> None:
        self.blocks: dict[int, int] = {0: 40}
        self.backend = "native"
        self.fraction = 1.0
        self.capturing = False
        self.asked = 0
        self.free = 500 * MIB
        self.uuid: str | None = "aa"
        self._C = SimpleNamespace(
            _cuda_memoryStats=self.stats,
            _cuda_hasPrimaryContext=lambda device: device in self.blocks,
            _cuda_getMemoryFraction=lambda device: self.fraction,
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 4,
            memory=SimpleNamespace(get_allocator_backend=lambda: self.backend),
            mem_get_info=lambda device: (self.free, 1000 * MIB),
            get_device_properties=lambda device: SimpleNamespace(uuid=self.uuid),
            is_current_stream_capturing=lambda: self.capturing,
        )

    def stats(self, device: int) -> dict[str, Any]:
        self.asked += 1
        blocks = self.blocks[device]
        count = {"current": blocks, "peak": blocks, "allocated": blocks, "freed": 0}
        size = {"current": blocks * MIB, "peak": 150 * MIB, "allocated": 0, "freed": 0}
        whole = {"current": 200 * MIB, "peak": 300 * MIB, "allocated": 0, "freed": 0}
        return {
            "allocation": {"all": count, "small_pool": count, "large_pool": count},
            "allocated_bytes": {"all": size, "small_pool": size, "large_pool": size},
            "active_bytes": {"all": size, "small_pool": size, "large_pool": size},
            "reserved_bytes": {"all": whole, "small_pool": whole, "large_pool": whole},
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    module = sys.modules[gpuheap.watch.__module__]
    made = Allocator()
    monkeypatch.setattr(module, "loaded_torch", lambda: made)
    for name in ("loaded_jax", "loaded_tensorflow", "loaded_cupy"):
        monkeypatch.setattr(module, name, lambda: None)
    monkeypatch.setattr(_nvml, "devices", lambda: None)
    return made


def test_counters_of_cuda(allocator: Allocator) -> None:
    source = Torch(allocator)
    assert source.devices() == ["cuda:0"]
    assert source.counters("cuda:0") == (40 * MIB, 40, 200 * MIB, 150 * MIB, 300 * MIB, 2, 1)
    # CUDA's own pools count no blocks.
    allocator.backend = "cudaMallocAsync"
    source = Torch(allocator)
    source.devices()
    assert source.counters("cuda:0")[1] is None


def process(pid: int, taken: int | None, own: bool = False) -> _nvml.Process:
    return _nvml.Process(pid, taken, None, own)


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ([process(1, 5, own=True), process(2, 7), process(3, 8)], 15),
        ([process(1, 5, own=True)], 0),
        # In a container nobody is this process; of a GPU in parts amounts are not told.
        ([process(2, 7)], None),
        ([process(1, 5, own=True), process(2, None)], None),
        # More than any device has.
        ([process(1, 5, own=True), process(2, (1 << 64) - 2), process(3, 9)], None),
        (None, None),
    ],
)
def test_others_memory(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch, processes: list[_nvml.Process] | None, others: int | None
) -> None:
    cards = [_nvml.Device(7, "GPU-aa", "card", 1, 1, 0, False), _nvml.Device(8, "GPU-bb", "card", 1, 1, 0, False)]
    monkeypatch.setattr(_nvml, "devices", lambda: cards)
    asked: list[Any] = []
    monkeypatch.setattr(_nvml, "processes", lambda device: asked.append(device) or processes)
    source = Torch(allocator)
    around = source.around("cuda:0")
    assert (around.free, around.total, around.others, around.limit) == (500 * MIB, 1000 * MIB, others, None)
    assert asked == [7]
    # A list that took a second is not asked for again at once, and what it said still holds.
    source._pace.spent(1.0)
    assert source.around("cuda:0").others == others
    assert asked == [7]


def test_a_card_that_nvml_does_not_know(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [_nvml.Device(0, "GPU-bb", "card", 1, 1, 0, False), _nvml.Device(1, "GPU-cc", "card", 1, 1, 0, False)]
    monkeypatch.setattr(_nvml, "devices", lambda: cards)
    monkeypatch.setattr(_nvml, "processes", lambda device: [process(1, 5, own=True)])
    assert Torch(allocator).around("cuda:0").others is None
    # Without UUIDs only a single card can be told.
    allocator.uuid = None
    assert Torch(allocator).around("cuda:0").others is None
    monkeypatch.setattr(_nvml, "devices", lambda: cards[:1])
    assert Torch(allocator).around("cuda:0").others == 0


def test_pytorchs_own_limit(allocator: Allocator) -> None:
    allocator.fraction = 0.25
    assert Torch(allocator).around("cuda:0").limit == 250 * MIB


def test_the_driver_is_left_alone_while_a_graph_is_recorded(allocator: Allocator) -> None:
    allocator.capturing = True
    assert Torch(allocator).around("cuda:0") == (None, None, None, None)


def test_xpu_and_mps() -> None:
    allocator = Allocator()
    allocator.blocks = {}
    allocator._C._xpu_memoryStats = lambda device: {
        "allocated_bytes": {"all": {"current": 40, "peak": 50}},
        "active_bytes": {"all": {"current": 45, "peak": 60}},
        "reserved_bytes": {"all": {"current": 80, "peak": 90}},
    }
    torch: Any = SimpleNamespace(
        _C=allocator._C,
        cuda=allocator.cuda,
        xpu=SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1, mem_get_info=lambda device: (20, 100)),
        mps=SimpleNamespace(
            driver_allocated_memory=lambda: 70,
            current_allocated_memory=lambda: 30,
            recommended_max_memory=lambda: 200,
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
    )
    source = Torch(torch)
    assert source.devices() == ["xpu:0", "mps:0"]
    assert source.counters("xpu:0") == (40, None, 80, 60, 90, 0, 0)
    assert source.around("xpu:0")[:2] == (20, 100)
    assert source.counters("mps:0") == (30, None, 70, None, None, 0, 0)
    assert source.around("mps:0")[:2] == (130, 200)


def test_devices_come_when_they_are_used(allocator: Allocator) -> None:
    allocator.blocks = {}
    with gpuheap.watch(10, []) as watch:
        for step in range(40):
            if step == 5:
                allocator.blocks = {1: 10}
            if step == 25:
                allocator.blocks[3] = 10
            watch.step()
    assert list(watch.healths) == ["cuda:1", "cuda:3"]
    health = watch.healths["cuda:1"]
    assert (health.retries, health.ooms, health.waste) == (2, 1, 0.5)
    assert "1 allocation failed; the cache was emptied 2 times" in health.sentence


def test_garbage_that_the_collector_gives_back_is_a_sawtooth(allocator: Allocator) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.self = self
            allocator.blocks[0] += 1

        def __del__(self) -> None:
            allocator.blocks[0] -= 1

    with gpuheap.watch(75, []) as watch:
        for step in range(75):
            Cycle()
            if step % 15 == 14:
                gc.collect()
            watch.step()
    assert watch.health is not None
    assert watch.health.kind == "sawtooth", watch.health.sentence
    assert watch.health.sentence.startswith("Sawtooth: +1")


def test_the_collector_is_watched_only_in_between(allocator: Allocator) -> None:
    before = list(gc.callbacks)
    with gpuheap.watch(10, []):
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before


def test_young_collections_are_looked_at_now_and_then() -> None:
    now = 0.0
    level = {"cuda:0": 100}
    looks = 0

    def allocated() -> dict[str, int]:
        nonlocal looks, now
        looks += 1
        now += 1e-5
        return dict(level)

    collector = Collector(allocated)
    collector._pace.clock = lambda: now
    collector._pid = __import__("os").getpid()

    def collect(generation: int, freed: int) -> None:
        collector._seen("start", {"generation": generation, "collected": 0, "uncollectable": 0})
        level["cuda:0"] -= freed
        collector._seen("stop", {"generation": generation, "collected": freed, "uncollectable": 0})

    collect(0, 10)
    assert collector.given_back == {"cuda:0": 10}
    collect(0, 10)
    assert looks == 2
    collect(2, 10)
    assert collector.given_back == {"cuda:0": 20}
    now += 1.0
    collect(1, 10)
    assert collector.given_back == {"cuda:0": 30}


# Steps of optimizers


def test_rounds_of_several_optimizers() -> None:
    for turns, rounds in (("AAAA", 4), ("ABABAB", 3), ("AABAAB", 4), ("ABBBB", 4), ("AABBCC", 4), ("ABCABC", 2)):
        told: list[int] = []
        steps = OptimizerSteps(lambda told=told: told.append(1))  # type: ignore[misc]
        for name in turns:
            steps.stepped(ord(name))
        assert len(told) == rounds, turns


def counters() -> Mapping[str, Any]:
    return {"allocated": MIB, "blocks": 1}


def test_optimizers_end_steps() -> None:
    torch = pytest.importorskip("torch")
    from torch.optim import optimizer as module

    hooks = len(module._global_optimizer_post_hooks)

    def train(count: int) -> Any:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(count):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weakref.ref(optimizer)

    seen: list[gpuheap.Health] = []
    with gpuheap.watch(10, seen.append, source=counters) as watch:
        weak = train(20)
        gc.collect()
        assert weak() is None, "the watch keeps an optimizer"
        watch.step()
    assert [health.step for health in seen] == [10, 20, 1]
    assert "judged" in seen[1].sentence
    assert len(module._global_optimizer_post_hooks) == hooks


def test_steps_by_the_program_count_instead() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(10, seen.append, source=counters) as watch:
        for _ in range(10):
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            watch.step()
    assert [health.step for health in seen] == [10]


def test_units_are_told() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.1)
    asked = 0

    def leaking() -> Mapping[str, Any]:
        nonlocal asked
        asked += 1
        return {"allocated": asked * MIB, "blocks": asked}

    with gpuheap.watch(20, [], source=leaking) as watch:
        for _ in range(20):
            parameter.sum().backward()
            optimizer.step()
    assert watch.health is not None
    assert watch.health.sentence.startswith("Leak: +1.00 MiB per optimizer step (")


@pytest.mark.filterwarnings("ignore:Guards may run slower")
def test_a_compiled_optimizer_ends_steps() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.1)

    @torch.compile(backend="eager")  # type: ignore[misc]
    def train() -> None:
        parameter.sum().backward()
        optimizer.step()

    seen: list[gpuheap.Health] = []
    with gpuheap.watch(1, seen.append, source=counters):
        for _ in range(3):
            train()
    assert [health.step for health in seen] == [1, 2, 3]


# Other frameworks


def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"bytes_in_use": 40, "peak_bytes_in_use": 60, "bytes_limit": 100, "pool_bytes": 80, "peak_pool_bytes": 80}
    devices = [
        SimpleNamespace(id=0, memory_stats=lambda: stats),
        SimpleNamespace(id=1, memory_stats=lambda: None),
    ]
    jax = SimpleNamespace(local_devices=lambda: devices)
    bridge = SimpleNamespace(_backends={})
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    source = Jax(jax)
    # Nothing is started.
    assert source.devices() == []
    bridge._backends = {"cuda": object()}
    assert source.devices() == ["jax:0"]
    assert source.counters("jax:0") == (40, None, 80, 60, 80, 0, 0)
    assert source.around("jax:0")[:2] == (20, 100)


def test_jax_itself() -> None:
    jax = pytest.importorskip("jax")
    assert jax.numpy.ones(3).sum() == 3
    # On the CPU it tells nothing of its memory.
    assert Jax(jax).devices() == []


def test_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"current": 40, "peak": 60}
    tensorflow = SimpleNamespace(
        config=SimpleNamespace(
            list_logical_devices=lambda kind: [SimpleNamespace(name="/device:GPU:0")],
            experimental=SimpleNamespace(get_memory_info=lambda device: {"GPU:0": info}[device]),
        )
    )
    context = SimpleNamespace(_initialized=False)
    eager = SimpleNamespace(context_safe=lambda: context)
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", eager)
    source = TensorFlow(tensorflow)
    assert source.devices() == []
    context._initialized = True
    assert source.devices() == ["GPU:0"]
    assert source.counters("GPU:0") == (40, None, 40, None, None, 0, 0)
    assert source.around("GPU:0") == (None, None, None, None)


def test_cupy() -> None:
    pool = SimpleNamespace(total_bytes=lambda: 80, used_bytes=lambda: 40, get_limit=lambda: 0)
    cupy = SimpleNamespace(
        get_default_memory_pool=lambda: pool,
        cuda=SimpleNamespace(
            Device=lambda: SimpleNamespace(id=1), runtime=SimpleNamespace(memGetInfo=lambda: (20, 100))
        ),
    )
    source = Cupy(cupy)
    assert source.devices() == ["cupy:1"]
    assert source.counters("cupy:1") == (40, None, 80, None, None, 0, 0)
    assert source.around("cupy:1") == (20, 100, None, None)
