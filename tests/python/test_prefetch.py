"""Batches ahead of their use. The device here is a make-believe one on the CPU, whose streams work only when they must:
what is not ordered by an event goes wrong for certain, not now and then."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import pytest

import gpuheap

torch = pytest.importorskip("torch")
module = importlib.import_module("gpuheap.prefetch")


class LazyStream:
    """Does its work when somebody waits for it, in order."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.done = 0
        self.lock = threading.RLock()

    def add(self, step: Callable[[], None]) -> int:
        with self.lock:
            self.work.append(step)
            return len(self.work)

    def run_to(self, count: int) -> None:
        with self.lock:
            while self.done < count:
                step = self.work[self.done]
                self.done += 1
                self.work[self.done - 1] = nothing
                step()

    def wait_event(self, event: LazyEvent) -> None:
        marks = dict(event.marks)
        self.add(lambda: run_marks(marks))

    def synchronize(self) -> None:
        self.run_to(len(self.work))


class LazyEvent:
    def __init__(self) -> None:
        self.marks: dict[LazyStream, int] = {}

    def record(self, stream: LazyStream) -> None:
        self.marks = {stream: len(stream.work)}

    def synchronize(self) -> None:
        run_marks(self.marks)


def nothing() -> None:
    pass


def run_marks(marks: dict[LazyStream, int]) -> None:
    for stream, count in marks.items():
        stream.run_to(count)


class Arena(torch.Tensor):  # type: ignore[misc, name-defined]
    """Device memory that the allocator takes back."""

    given_away: int = 0
    # Streams that use the memory besides its own, by address.
    users: ClassVar[dict[int, LazyStream]] = {}

    def record_stream(self, stream: LazyStream) -> None:
        Arena.given_away += 1
        Arena.users[self.data_ptr()] = stream


class LazyLayer:
    """Looks like CUDA to the ring."""

    def __init__(self) -> None:
        self.torch = torch
        self.device = torch.device("cpu")
        self.user = LazyStream()
        self.sides: list[LazyStream] = []
        self.arenas: list[weakref.ref[Any]] = []
        self.pinned: list[weakref.ref[Any]] = []
        # For ever: what was released can still be read, and is found to be wrong.
        self.memory: list[bytearray] = []
        self.most = 0

    def enter_thread(self) -> None:
        pass

    def side_stream(self) -> LazyStream:
        self.sides.append(LazyStream())
        return self.sides[-1]

    def current_stream(self) -> LazyStream:
        return self.user

    def event(self) -> LazyEvent:
        return LazyEvent()

    def device_bytes(self, count: int, stream: LazyStream) -> Any:
        memory = bytearray(count)
        self.memory.append(memory)
        arena = torch.frombuffer(memory, dtype=torch.uint8).as_subclass(Arena)
        address = arena.data_ptr()

        def freed(_: Any) -> None:
            """Let the next owner write there, which is the same stream; after the other users, if they are known."""
            marks = {user: len(user.work)} if (user := Arena.users.pop(address, None)) else {}

            def step() -> None:
                run_marks(marks)
                ctypes.memset(address, 255, count)

            stream.add(step)

        self.arenas.append(weakref.ref(arena.untyped_storage(), freed))
        self.most = max(self.most, self.living())
        return arena

    def living(self) -> int:
        return sum(reference() is not None for reference in self.arenas)

    def host_bytes(self, count: int) -> Any:
        memory = torch.full((count,), 254, dtype=torch.uint8)
        self.pinned.append(weakref.ref(memory))
        return memory

    def is_pinned(self, tensor: Any) -> bool:
        return getattr(tensor, "pinned", False)

    def copy(self, to: Any, source: Any, stream: LazyStream) -> None:
        assert to.stride() == source.stride()
        count = to.numel() * to.element_size()
        # A device knows addresses, and keeps nothing alive.
        owner = weakref.ref(source.untyped_storage())
        addresses = (to.data_ptr(), source.data_ptr())

        def step() -> None:
            assert owner() is not None, "pinned memory was released before it was read"
            ctypes.memmove(*addresses, count)

        stream.add(step)


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[LazyLayer]:
    made = LazyLayer()
    Arena.given_away = 0
    Arena.users.clear()
    monkeypatch.setattr(module, "_place", lambda device: (made, made.device))
    yield made
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "gpuheap-prefetch"]
    made.user.synchronize()
    for side in made.sides:
        side.synchronize()
    made.sides.clear()
    gc.collect()
    assert made.living() == 0
    assert not any(reference() is not None for reference in made.pinned)


def batches(count: int, size: int = 1000) -> Iterator[Any]:
    for index in range(count):
        yield torch.full((size,), float(index))


def use(layer: LazyLayer, tensor: Any, results: list[float]) -> None:
    """Read the tensor on the user's stream, whenever that comes to it."""
    count = tensor.numel()
    read = (ctypes.c_float * count).from_address(tensor.data_ptr())

    def step() -> None:
        results.append(sum(read) / count)

    layer.user.add(step)


def test_order_and_values(layer: LazyLayer) -> None:
    results: list[float] = []
    for batch in gpuheap.prefetch(batches(20), "cuda"):
        use(layer, batch, results)
    del batch
    layer.user.synchronize()
    assert results == list(range(20))
    assert Arena.given_away <= 1


def test_never_more_than_depth(layer: LazyLayer) -> None:
    for depth in (2, 3, 5):
        layer.most, layer.arenas = 0, []
        pre = gpuheap.prefetch(batches(30), "cuda", depth=depth)
        for index, batch in enumerate(pre):
            time.sleep(0.002)
            assert batch is not None
            del batch
            assert index >= 0
        assert layer.most == depth
        assert len(layer.arenas) == depth


def test_batches_come_ahead(layer: LazyLayer) -> None:
    taken: list[int] = []

    def loader() -> Iterator[Any]:
        for index in range(6):
            taken.append(index)
            yield torch.zeros(10)

    pre = iter(gpuheap.prefetch(loader(), "cuda", depth=3))
    batch = next(pre)
    deadline = time.monotonic() + 5
    # One in use, two on the device, one in the thread's hands.
    while taken != [0, 1, 2, 3] and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert taken == [0, 1, 2, 3]
    pre.close()
    del batch


def test_what_the_program_keeps_stays(layer: LazyLayer) -> None:
    kept = list(gpuheap.prefetch(batches(10), "cuda"))
    layer.user.synchronize()
    assert [tensor.mean().item() for tensor in kept] == list(range(10))
    del kept


def test_what_was_kept_is_released_in_order(layer: LazyLayer) -> None:
    results: list[float] = []
    kept = list(gpuheap.prefetch(batches(6), "cuda"))
    for tensor in kept:
        use(layer, tensor, results)
    del kept, tensor
    gc.collect()
    # The memory may be written again by the side stream, but not before it was read.
    for side in layer.sides:
        side.synchronize()
    layer.user.synchronize()
    assert results == list(range(6))


def test_an_alias_keeps_the_memory(layer: LazyLayer) -> None:
    kept = []
    for batch in gpuheap.prefetch(batches(10), "cuda"):
        kept.append(batch.detach()[:2])
    del batch
    layer.user.synchronize()
    for side in layer.sides:
        side.synchronize()
    assert [tensor.mean().item() for tensor in kept] == list(range(10))
    del kept


def test_tensors_of_a_batch_change_on_their_own(layer: LazyLayer) -> None:
    loader = [{"x": torch.ones(4), "y": torch.ones(4)}]
    for batch in gpuheap.prefetch(loader, "cuda"):
        weight = torch.ones(4, requires_grad=True)
        layer.user.synchronize()
        loss = (weight * batch["x"]).sum()
        # Would be an error if both were views of one tensor.
        batch["y"].zero_()
        loss.backward()
        assert weight.grad.tolist() == [1, 1, 1, 1]
    del batch, loss, weight


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    image: Any
    name: str


class Graph:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.moved = False

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        made = Graph(self.value.to(device))
        made.moved = True
        return made


def test_structures(layer: LazyLayer) -> None:
    image = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    wide = torch.arange(6).expand(3, 6)
    pinned = torch.rand(7)
    pinned.pinned = True
    loader = [
        (
            Sample(image, "one"),
            Point(torch.tensor(1, dtype=torch.int8), [torch.rand(3, dtype=torch.float64), None, 7]),
            {"wide": wide, "pinned": pinned, "sparse": torch.eye(3).to_sparse(), "empty": torch.zeros(0, 3)},
            Graph(torch.ones(2)),
            torch.tensor([True, False]),
            torch.rand(4, dtype=torch.bfloat16),
            torch.view_as_complex(torch.rand(3, 2)),
        )
    ]
    for batch in gpuheap.prefetch(loader, "cuda"):
        layer.user.synchronize()
        sample, point, mapping, graph, *plain = batch
        assert torch.equal(sample.image, image)
        assert sample.image.is_contiguous(memory_format=torch.channels_last)
        assert sample.name == "one"
        assert sample is not loader[0][0]
        assert type(point) is Point
        assert point.x.item() == 1
        assert torch.equal(point.y[0], loader[0][1].y[0])
        assert point.y[1:] == [None, 7]
        assert torch.equal(mapping["wide"], wide)
        assert torch.equal(mapping["pinned"], pinned)
        assert torch.equal(mapping["sparse"].to_dense(), torch.eye(3))
        assert mapping["empty"].shape == (0, 3)
        assert graph.moved
        for got, sent in zip(plain, loader[0][4:], strict=True):
            assert torch.equal(got, sent)
            assert got.data_ptr() != sent.data_ptr()
    del batch, sample, point, mapping, graph, plain, got, sent


def test_batches_without_tensors(layer: LazyLayer) -> None:
    assert list(gpuheap.prefetch(range(50), "cuda")) == list(range(50))
    assert layer.most == 0


def test_sizes_may_vary(layer: LazyLayer) -> None:
    results: list[float] = []
    sizes = [10, 5000, 3, 100_000, 70, 100_001, 1]
    loader = (torch.full((size,), float(size)) for size in sizes)
    for batch in gpuheap.prefetch(loader, "cuda"):
        use(layer, batch, results)
    del batch
    layer.user.synchronize()
    assert results == pytest.approx(sizes)


@pytest.mark.parametrize("place", ["ring", "cpu"])
def test_errors_come_at_their_place(place: str, request: pytest.FixtureRequest) -> None:
    if place == "ring":
        request.getfixturevalue("layer")

    def loader() -> Iterator[Any]:
        yield from batches(3)
        raise KeyError("broken file")

    pre = iter(gpuheap.prefetch(loader(), "cpu"))
    for _ in range(3):
        next(pre)
    with pytest.raises(KeyError, match="broken file") as caught:
        next(pre)
    assert "loader" in [frame.name for frame in caught.traceback]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(pre)


@pytest.mark.parametrize("place", ["ring", "cpu"])
@pytest.mark.parametrize("how", ["break", "close", "error"])
def test_leaving_early_releases_everything(place: str, how: str, request: pytest.FixtureRequest) -> None:
    if place == "ring":
        request.getfixturevalue("layer")
    closed = threading.Event()

    def loader() -> Iterator[Any]:
        try:
            yield from batches(100)
        finally:
            closed.set()

    def leave() -> None:
        pre = iter(gpuheap.prefetch(loader(), "cpu", depth=4))
        next(pre)
        if how == "close":
            pre.close()
            with pytest.raises(StopIteration):
                next(pre)
        elif how == "error":
            raise ZeroDivisionError

    if how == "error":
        with pytest.raises(ZeroDivisionError):
            leave()
    else:
        leave()
    gc.collect()
    assert closed.is_set()


@pytest.mark.parametrize("place", ["ring", "cpu"])
def test_as_often_as_the_loader(place: str, request: pytest.FixtureRequest) -> None:
    if place == "ring":
        request.getfixturevalue("layer")
    data = torch.utils.data.DataLoader(torch.arange(12.0), batch_size=4)
    pre = gpuheap.prefetch(data, "cpu")
    assert len(pre) == 3
    for _ in range(3):
        assert len(list(pre)) == 3
    with pytest.raises(TypeError):
        len(gpuheap.prefetch(batches(3), "cpu"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_a_loader(layer: LazyLayer) -> None:
    data = torch.utils.data.DataLoader(list(range(12)), batch_size=4, num_workers=1)
    seen = []
    for batch in gpuheap.prefetch(data, "cuda"):
        layer.user.synchronize()
        seen += batch.tolist()
    del batch
    assert seen == list(range(12))


def test_depth_counts_the_batch_in_use() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        gpuheap.prefetch([], depth=1)


def test_without_cuda_batches_are_moved_as_they_are_taken() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    batch = {"x": torch.ones(2)}
    # The default and `cuda` are where the batches are.
    for device in (None, "cuda"):
        assert next(iter(gpuheap.prefetch([batch], device)))["x"] is batch["x"]
    (moved,) = gpuheap.prefetch([batch], "meta")
    assert moved["x"].device.type == "meta"


def test_without_torch_batches_come_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    batch = object()
    assert list(gpuheap.prefetch([batch], "cuda")) == [batch]


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    weights = torch.rand(2048, 2048, device="cuda")
    size, depth = 1 << 22, 3
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    sums = []
    for batch in gpuheap.prefetch(({"x": torch.full((size,), float(i)), "i": i} for i in range(40)), depth=depth):
        # Long enough for copies to overtake what is not ordered.
        for _ in range(20):
            weights @ weights
        sums.append((batch["x"].double().sum() / size, batch["i"]))
    del batch
    peak = torch.cuda.max_memory_allocated() - before
    assert [total.item() for total, _ in sums] == [index for _, index in sums] == list(range(40))
    products = weights.numel() * weights.element_size()
    assert peak <= depth * size * 4 + 2 * products + size * 8 + (1 << 21)


@pytest.mark.gpu
def test_kept_batches_on_a_gpu() -> None:
    kept = []
    for index, batch in enumerate(gpuheap.prefetch(batches(50, 1 << 20), "cuda")):
        if index % 3 == 0:
            kept.append(batch.detach())
        torch.cuda._sleep(1_000_000)
    del batch
    assert [tensor.mean().item() for tensor in kept] == list(range(0, 50, 3))
