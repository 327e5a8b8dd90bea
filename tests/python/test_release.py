"""`gpuheap.release`: what it does with each framework, that its table adds up, and what it leaves alone.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gpuheap._bytes import bytes_text, parse_bytes
from gpuheap.errors import Error
from gpuheap.release import Released, release


@pytest.fixture
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_frameworks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the frameworks that it names, whatever is loaded in this process."""
    for name in ("cupy", "cupy.fft", "jax", "tensorflow", "keras", "IPython"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if "torch" not in request.fixturenames:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        sys.__dict__.pop(name, None)


def status(released: Released) -> dict[str, str]:
    return {step.name: step.status for step in released.steps}


def adds_up(released: Released) -> None:
    assert sum(step.device_bytes for step in released.steps) == released.device_bytes
    assert sum(step.reserved_bytes for step in released.steps) == released.reserved_bytes
    assert sum(step.allocated_bytes for step in released.steps) == released.allocated_bytes


# Units


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (86_736_896, "82.7 MiB"),
        (262_144_000, "250 MiB"),
        (1_048_575, "1.00 MiB"),
        (39_151_730_688, "36.5 GiB"),
        (27_130_997_760, "25.3 GiB"),
        ((1 << 64) - 1, "16.0 EiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_as_the_command_writes_them(amount: int, text: str) -> None:
    assert bytes_text(amount) == text


def test_bytes_as_the_command_reads_them() -> None:
    for text, amount in [
        ("24GiB", 24 << 30),
        ("24 gib", 24 << 30),
        ("24G", 24 << 30),
        ("24GB", 24_000_000_000),
        ("1.5MiB", 3 << 19),
        ("512", 512),
        ("80_000_000_000", 80_000_000_000),
    ]:
        assert parse_bytes(text) == amount
    for wrong in ("", "GiB", "-1", "24 QiB", "1e9", "1..5G"):
        with pytest.raises(ValueError, match="is not an amount of memory"):
            parse_bytes(wrong)


# A process without any framework


def test_nothing_is_imported() -> None:
    code = (
        "import sys\n"
        "from gpuheap.release import release\n"
        "from gpuheap.holders import holders\n"
        "from gpuheap.scope import scope\n"
        "print(release())\n"
        "with scope('x', budget='1 MiB', track=True): holders([])\n"
        "wrong = {'torch', 'jax', 'cupy', 'tensorflow', 'numpy', 'IPython'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "given back        device  allocator  tensors"
    assert lines[1].startswith("reference cycles       -          -        -  ")
    assert lines[2:] == [
        "together             0 B        0 B      0 B",
        "",
        "no device is in use",
        "not done: work of the streams (no accelerator is in use); stored exceptions",
        "  (none)",
    ]


def test_the_result_is_short_where_it_is_not_printed() -> None:
    held = r"[0-9.]+ ([KMGT]i)?B still held"
    assert re.fullmatch(f"<gpuheap.Released: 0 B given back to the device, {held}>", repr(release(largest=0)))


# Exceptions


class Thing:
    pass


def failing(alive: list[Any]) -> None:
    thing = Thing()
    alive.append(weakref.ref(thing))
    raise ValueError("no memory")


def caught(alive: list[Any]) -> ValueError:
    try:
        failing(alive)
    except ValueError as error:
        return error
    raise AssertionError


def test_stored_exceptions_give_up_their_locals() -> None:
    alive: list[Any] = []
    stored = [caught(alive)]
    assert alive[0]() is not None
    released = release()
    assert alive[0]() is None
    assert status(released)["stored exceptions"] == "done"
    # The exception is still there, and tells where it was raised.
    assert stored[0].__traceback__ is not None
    assert stored[0].__traceback__.tb_next is not None
    assert stored[0].__traceback__.tb_next.tb_frame.f_code.co_name == "failing"
    adds_up(released)


def test_a_debuggers_look_at_the_locals_goes_as_well() -> None:
    alive: list[Any] = []
    stored = caught(alive)
    assert stored.__traceback__ is not None and stored.__traceback__.tb_next is not None
    assert "thing" in stored.__traceback__.tb_next.tb_frame.f_locals
    release()
    assert alive[0]() is None


def test_only_the_last_error_on_request() -> None:
    alive: list[Any] = []
    stored = caught(alive)
    setattr(sys, "last_exc", caught(alive))
    setattr(sys, "last_value", sys.last_exc)
    setattr(sys, "last_traceback", sys.last_exc.__traceback__)
    setattr(sys, "last_type", ValueError)
    release(tracebacks=False)
    assert alive[0]() is not None
    assert alive[1]() is None
    assert not any(hasattr(sys, name) for name in ("last_exc", "last_value", "last_traceback", "last_type"))
    assert stored.__traceback__ is not None


def test_an_exception_that_is_being_handled_is_left_alone() -> None:
    alive: list[Any] = []
    try:
        failing(alive)
    except ValueError as error:
        setattr(sys, "last_exc", error)
        try:
            raise KeyError("while handling")
        except KeyError:
            release()
        assert alive[0]() is not None
        assert sys.last_exc is error
        release()
        assert alive[0]() is not None
    release()
    assert alive[0]() is None


def test_frames_that_go_on_are_left_alone() -> None:
    alive: list[Any] = []

    def batches() -> Iterator[int]:
        kept = Thing()
        alive.append(weakref.ref(kept))
        stored = None
        try:
            raise ValueError
        except ValueError as error:
            stored = error
        yield 1
        assert kept is not None
        yield 2
        assert stored is not None

    it = batches()
    assert next(it) == 1
    release()
    # The traceback that the generator has stored is of its own frame: to clear that would end the generator.
    assert next(it) == 2
    assert alive[0]() is not None


def test_reference_cycles() -> None:
    thing = Thing()
    thing.me = thing  # type: ignore[attr-defined]
    reference = weakref.ref(thing)
    gc.disable()
    try:
        del thing
        assert reference() is not None
        released = release()
        assert reference() is None
    finally:
        gc.enable()
    assert status(released)["reference cycles"] == "done"


# CuPy and notebooks by their surfaces


class FakeDevice:
    """A card of 80 GiB, and a pool that has taken 10 of them, 2 in use."""

    def __init__(self) -> None:
        self.pool = 10 << 30
        self.used = 2 << 30
        self.calls: list[str] = []

    def module(self) -> types.ModuleType:
        cupy = types.ModuleType("cupy")
        pool = types.SimpleNamespace(
            total_bytes=lambda: self.pool, used_bytes=lambda: self.used, free_all_blocks=self.free_blocks
        )
        pinned = types.SimpleNamespace(free_all_blocks=lambda: self.calls.append("pinned"))
        runtime = types.SimpleNamespace(
            memGetInfo=lambda: ((80 << 30) - self.pool, 80 << 30),
            deviceSynchronize=lambda: self.calls.append("synchronize"),
        )
        cupy.get_default_memory_pool = lambda: pool  # type: ignore[attr-defined]
        cupy.get_default_pinned_memory_pool = lambda: pinned  # type: ignore[attr-defined]
        cupy.cuda = types.SimpleNamespace(runtime=runtime)  # type: ignore[attr-defined]
        return cupy

    def free_blocks(self) -> None:
        self.calls.append("pool")
        self.pool = self.used


def test_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    fft = types.ModuleType("cupy.fft")
    cache = types.SimpleNamespace(clear=lambda: device.calls.append("plans"))
    fft.config = types.SimpleNamespace(get_plan_cache=lambda: cache)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", device.module())
    monkeypatch.setitem(sys.modules, "cupy.fft", fft)
    released = release()
    assert device.calls == ["synchronize", "plans", "pool", "pinned"]
    assert (released.device_bytes, released.reserved_bytes, released.allocated_bytes) == (8 << 30, 8 << 30, 0)
    assert released.before.source == "cupy"
    adds_up(released)
    lines = [line for line in str(released).splitlines() if not line.startswith("reference cycles")]
    assert lines == [
        "given back             device  allocator  tensors",
        "work of the streams         -          -        -  cupy",
        "CuPy's FFT plans            -          -        -",
        "CuPy's pool          8.00 GiB   8.00 GiB        -  2.00 GiB in use",
        "CuPy's pinned pool          -          -        -",
        "together             8.00 GiB   8.00 GiB      0 B",
        "",
        "device free: 70.0 GiB before, 78.0 GiB now, of 80.0 GiB",
        "still held: 2.00 GiB",
        "  CuPy   2.00 GiB",
        "not done: stored exceptions (none)",
    ]


def test_a_step_that_fails_keeps_no_other_from_being_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    cupy = device.module()

    def broken() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore text")

    cupy.cuda.runtime.deviceSynchronize = broken
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    released = release()
    assert [step.name for step in released.failed] == ["work of the streams"]
    assert "failed: RuntimeError: CUDA error: device-side assert triggered\n" in str(released)
    assert "pool" in device.calls
    adds_up(released)


def test_a_device_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    cupy = device.module()

    def broken() -> None:
        raise RuntimeError("sticky")

    cupy.cuda.runtime.memGetInfo = broken
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    released = release()
    assert released.device_bytes == 0
    assert released.notes[0] == "the device could not be asked: RuntimeError: sticky"
    adds_up(released)


def test_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    alive = weakref.ref(thing)
    outputs = {3: thing}
    hook = types.SimpleNamespace(_=thing, __=None, ___=None)
    hook.__ = "old"
    names = {"Out": outputs, "_oh": outputs, "_": thing, "_3": thing, "_i3": "x", "In": ["x"], "__": "mine", "x": 1}
    shell = types.SimpleNamespace(user_ns=names, displayhook=hook)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    del thing
    released = release()
    assert alive() is not None
    assert "outputs of the notebook (`notebook=True` forgets them)" in str(released)
    release(notebook=True)
    assert alive() is None
    # What the program named itself stays, and so do the inputs.
    assert names["__"] == "mine"
    assert (names["x"], names["_i3"], names["In"], names["_"]) == (1, "x", ["x"], "")


# PyTorch on the host


def test_torch_on_the_host(torch: Any) -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    kept = {"features": torch.ones(1 << 20)}
    weights = model.weight.detach().clone()
    released = release()
    adds_up(released)
    assert not released.failed
    parameters = 64 * 64 * 4 + 64 * 4
    assert released.by_class["parameters"] >= parameters
    assert released.by_class["gradients"] >= parameters
    assert released.by_class["optimizer state"] >= 2 * parameters
    largest = released.largest[0]
    assert largest.bytes == 4 << 20
    assert largest.tensor == "Tensor[1048576] float32 on cpu"
    assert any("local 'kept'['features']" in path for path in largest.holders)
    # Nothing that is in use has changed.
    assert torch.equal(weights, model.weight)
    assert kept["features"].sum() == 1 << 20


def test_each_storage_is_counted_once(torch: Any) -> None:
    base = torch.ones(3 << 20)
    views = [base[:10], base.view(3, -1), base.detach()]
    released = release()
    held = [one for one in released.largest if one.bytes == 12 << 20]
    assert len(held) == 1
    assert len(views) == 3
    assert "<td>" in released._repr_html_()


def test_a_failed_step_of_training(torch: Any) -> None:
    errors = []
    alive = []

    def step() -> None:
        activations = torch.ones(1 << 20)
        alive.append(weakref.ref(activations))
        raise RuntimeError("out of memory")

    try:
        step()
    except RuntimeError as error:
        errors.append(error)
        inside = release()
        assert inside.notes[0].startswith("an exception that is being handled keeps 4.00 MiB in its frames")
        assert alive[0]() is not None
    release()
    assert alive[0]() is None


def test_not_while_a_graph_is_captured(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuheap._frameworks import torch as module

    monkeypatch.setattr(module, "capturing", lambda torch: True)
    with pytest.raises(Error, match="is capturing a CUDA graph"):
        release()


class FakeCuda:
    """The calls of `torch.cuda` that a release makes, on a card of 80 GiB."""

    class CUDAGraph:
        pass

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reserved = 20 << 30
        self.allocated = 1 << 30

    def module(self) -> Any:
        cache = types.SimpleNamespace(size=3, clear=lambda: self.calls.append("plans"))
        cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 2,
            is_current_stream_capturing=lambda: False,
            synchronize=lambda device: self.calls.append(f"synchronize {device}"),
            mem_get_info=lambda device: ((80 << 30) - self.reserved, 80 << 30),
            memory_reserved=lambda device: self.reserved,
            memory_allocated=lambda device: self.allocated,
            empty_cache=self.empty,
            ipc_collect=lambda: self.calls.append("ipc"),
            CUDAGraph=self.CUDAGraph,
        )
        c = types.SimpleNamespace(
            _cuda_hasPrimaryContext=lambda device: device == 0,
            _cuda_clearCublasWorkspaces=self.workspaces,
            _host_emptyCache=lambda: self.calls.append("pinned"),
        )
        backends = types.SimpleNamespace(cuda=types.SimpleNamespace(cufft_plan_cache=[cache]))
        return types.SimpleNamespace(
            Tensor=Thing, _C=c, cuda=cuda, backends=backends, clear_autocast_cache=lambda: self.calls.append("autocast")
        )

    def workspaces(self) -> None:
        self.calls.append("cublas")
        self.allocated -= 64 << 20

    def empty(self) -> None:
        self.calls.append("empty")
        self.reserved = self.allocated


def test_the_order_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", fake.module())
    released = release()
    # Only the device on which the process has a context; the allocator comes last.
    assert fake.calls == ["synchronize 0", "autocast", "cublas", "plans", "ipc", "pinned", "empty"]
    adds_up(released)
    assert released.allocated_bytes == 64 << 20
    assert released.device_bytes == released.reserved_bytes == (19 << 30) + (64 << 20)
    table = str(released)
    assert "cuBLAS workspaces                   -          -  64.0 MiB" in table
    assert "PyTorch's allocator          19.1 GiB   19.1 GiB         -" in table
    assert "together                     19.1 GiB   19.1 GiB  64.0 MiB" in table


def test_workspaces_stay_while_a_captured_graph_may_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", fake.module())
    graph = FakeCuda.CUDAGraph()
    graph.pool = []  # type: ignore[attr-defined]
    released = release()
    assert "cublas" not in fake.calls
    assert "cuBLAS workspaces (1 captured CUDA graph may use them)" in " ".join(str(released).split())
    assert graph is not None
