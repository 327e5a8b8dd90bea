"""`gpuheap.record` in programs that are odd: a recording neither disturbs them nor is lost by them."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuheap
from gpuheap import recorded
from gpuheap._record import activations, driver, labels, pace
from support_torch import installed


@pytest.fixture
def example(examples: Path) -> Path:
    return examples / "loss_accumulate.pickle.gz"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, example: Path) -> Iterator[Any]:
    yield from installed(monkeypatch, example)


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("an object that misbehaves")


def kind(path: Path) -> str:
    found: str = gpuheap.explain(path)["verdict"]["kind"]
    return found


def test_modules_and_tensors_that_misbehave_cost_only_their_own_names(torch: Any, tmp_path: Path) -> None:
    class Dead(torch.Tensor):  # type: ignore[misc]
        is_cuda = property(fails)

    class Silent(torch.Module):  # type: ignore[misc]
        named_parameters = fails

    class Unlike(torch.Module):  # type: ignore[misc]
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

    odd = {"dead": Dead(4096), "half \udc80": torch.Tensor(8192), "large": torch.Tensor(1 << 64)}
    kept = [Silent(), torch.Module(**odd, good=torch.Tensor(12288)), torch.Optimizer({object(): {"a": Dead(1)}})]
    kept += [types.SimpleNamespace(of=kept), torch.Optimizer(None), Unlike(also=torch.Tensor(16384))]
    with gpuheap.record(tmp_path / "run.gpuheap", activations=True) as recording:
        (hook,) = torch.forward_hooks
        for _ in range(2):
            hook(kept[-1], (), torch.Tensor(1 << 20))
            hook(kept[1], (), torch.Tensor(1 << 21))
        heard = [(label.address, label.name) for label in recording._activations.labels()]  # type: ignore[union-attr]
    assert heard == [(1 << 21, "Module")] * 2
    assert {label.name for label in recording._names.values()} == {"Module.half \\udc80", "Module.good", "Unlike.also"}
    assert kind(tmp_path / "run.gpuheap") == "leak"


@pytest.mark.parametrize("said", [(-1, 4 << 30), (1 << 70, 1 << 70), ((1 << 64) - 1,) * 2, (1.5, 2.5), (5 << 30, 1)])
def test_a_driver_that_says_what_cannot_be_is_not_believed(torch: Any, tmp_path: Path, said: Any) -> None:
    torch.cuda.mem_get_info = lambda _: said
    with gpuheap.record(tmp_path / "run.gpuheap"):
        pass
    report = gpuheap.explain(tmp_path / "run.gpuheap")
    assert report["verdict"]["kind"] == "leak" and "device_bytes" not in report["source"]


def test_facts_that_cannot_be_had_or_written(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.get_device_name = fails
    monkeypatch.setenv("RANK", "\udc80")
    found = dict(driver.facts(torch))
    assert found["rank"] == "\\udc80" and "GPU" not in found and found["PyTorch"] == "0.0"
    assert labels.plain("größer \ud800") == "größer \\ud800"


def test_a_start_that_fails_leaves_nothing(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = gpuheap.record(tmp_path / "run.gpuheap", activations=True)
    before = list(threading.enumerate())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="misbehaves"):
            recording.start()
    assert torch.forward_hooks == [] and torch.cuda.memory.started[-1] == (None, {})
    torch._C._profiler = types.SimpleNamespace(gather_traceback=fails)
    assert pace.walk_seconds(torch) == pace.UNKNOWN_WALK
    with recording:
        assert len(torch.forward_hooks) == 1
    assert torch.forward_hooks == [] and threading.enumerate() == before
    assert kind(tmp_path / "run.gpuheap") == "leak"


def in_a_snapshot(torch: Any, work: Callable[[], object]) -> None:
    """Do something in the middle of the next snapshot."""
    snapshot = torch.cuda.memory._snapshot

    def interrupted() -> Any:
        torch.cuda.memory._snapshot = snapshot
        work()
        # The history is off, if that was to stop.
        return snapshot() if torch.cuda.memory.started[-1] != (None, {}) else {"segments": [], "device_traces": []}

    torch.cuda.memory._snapshot = interrupted


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("outer", ["save", "stop"])
def test_a_signal_may_stop_it_while_it_saves(torch: Any, tmp_path: Path, outer: str) -> None:
    recording = gpuheap.record(tmp_path / "run.gpuheap").start()
    before = signal.signal(signal.SIGTERM, lambda *_: recording.stop())
    try:
        in_a_snapshot(torch, lambda: signal.raise_signal(signal.SIGTERM))
        getattr(recording, outer)()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "not under way" in repr(recording)
    assert kind(tmp_path / "run.gpuheap") == "leak", "what was written last is whole"


def test_ctrl_c_in_stop_ends_it(torch: Any, tmp_path: Path) -> None:
    recording = gpuheap.record(tmp_path / "run.gpuheap", activations=True).start()
    in_a_snapshot(torch, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        recording.stop()
    assert torch.forward_hooks == [] and torch.cuda.memory.started[-1] == (None, {})


def test_several_threads_may_stop_it(torch: Any, tmp_path: Path) -> None:
    recording = gpuheap.record(tmp_path / "run.gpuheap").start()
    threads = [threading.Thread(target=recording.stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recording._writes == 1 and kind(tmp_path / "run.gpuheap") == "leak"


def test_a_program_that_changes_its_folder(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with gpuheap.record("run.gpuheap", snapshot="run.pickle") as recording:
        os.chdir("elsewhere")
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "run.gpuheap", "run.pickle"}
    assert recording.path == "run.gpuheap" and recording.report()["verdict"]["kind"] == "leak"


def test_a_process_forked_off_before_pytorch_came_has_its_own(torch: Any, tmp_path: Path) -> None:
    recording = recorded._when_torch_comes(gpuheap.record(tmp_path / "run.gpuheap"))
    recording._pid = 1
    with recording:
        pass
    assert [path.name for path in tmp_path.iterdir()] == [f"run-{os.getpid()}.gpuheap"]


def test_modules_that_are_compiled_or_traced_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(labels, "place", lambda torch, tensor: (0, 4096))
    model, batch = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.zeros(2, 4)
    kept = [weakref.ref(one) for one in (*model.modules(), batch)]
    heard = activations.Activations(torch)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A hook that cannot be compiled would be an error here.
            whole = torch.compile(model, backend="eager", fullgraph=True)(batch)
        assert torch.equal(whole, model(batch))
        # What is no tensor with memory of its own is no error.
        torch.func.vmap(model)(torch.zeros(3, 2, 4))
        model.to("meta")(torch.zeros(2, 4, device="meta"))
        assert {label.name.rpartition(".")[2] for label in heard.labels()} >= {"0", "1"}
    finally:
        heard.remove()
    del model, batch, whole
    torch._dynamo.reset()
    gc.collect()
    assert [one() for one in kept if one() is not None] == [], "nothing of the program is kept"


PROGRAM = """
import json, os, sys, types
sys.path.insert(0, {tests!r})
from support_torch import FAKE, installed
torch = types.ModuleType("torch")
exec(FAKE.format(example={example!r}), torch.__dict__)
sys.modules["torch"] = torch
import gpuheap
recording = gpuheap.record("run.gpuheap", activations=True).start()
"""


def program(example: Path, folder: Path, body: str) -> str:
    text = PROGRAM.format(tests=str(Path(__file__).parent), example=str(example)) + body
    ran = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    return ran.stdout


def test_one_that_is_never_stopped_ends_with_the_program(example: Path, tmp_path: Path) -> None:
    program(example, tmp_path, "os.chdir('/')")
    assert kind(tmp_path / "run.gpuheap") == "leak"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_records_nothing(example: Path, tmp_path: Path) -> None:
    body = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
recording._saving.acquire()
child = os.fork()
if child == 0:
    torch.cuda.memory._snapshot = None
    recording.stop()
    gpuheap.step()
    torch.observers[0]()
    assert torch.forward_hooks == [] and torch.marks == []
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
recording._saving.release()
print(json.dumps([os.path.exists("run.gpuheap"), repr(recording), len(torch.forward_hooks)]))
"""
    (there, said, hooks) = json.loads(program(example, tmp_path, body))
    assert not there and ", under way" in said and hooks == 1
    assert kind(tmp_path / "run.gpuheap") == "leak"
