"""`gpuheap.record`, with a PyTorch that is none: it plays a real snapshot back."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuheap
from gpuheap import recorded
from gpuheap.errors import Error

FAKE = """
import pickle, gzip, sys, types

class OutOfMemoryError(RuntimeError):
    pass

class _Memory:
    started = []
    def _record_memory_history(self, enabled="all", **options):
        self.started.append((enabled, options))
    def _snapshot(self):
        with gzip.open({example!r}) as file:
            return pickle.load(file)

class _Cuda(types.ModuleType):
    OutOfMemoryError = OutOfMemoryError
    memory = _Memory()
    def is_available(self): return True
    def is_initialized(self): return True
    def device_count(self): return 1
    def memory_reserved(self, device): return 1 << 30
    def mem_get_info(self, device): return (2 << 30, 4 << 30)
    def get_device_name(self, device): return "Card"

class Storage:
    def __init__(self, address): self.address = address
    def data_ptr(self): return self.address

class Device:
    index = 0

strided = "strided"

class Tensor:
    is_cuda, layout, device, grad = True, strided, Device(), None
    def __init__(self, address): self.address = address
    def untyped_storage(self): return Storage(self.address)

class Module:
    def __init__(self, **parameters):
        self.__dict__["_modules"] = {{}}
        self.parameters = parameters
    def named_parameters(self, prefix=""):
        return [(f"{{prefix}}.{{name}}", tensor) for name, tensor in self.parameters.items()]
    def named_buffers(self, prefix=""):
        return []

class Optimizer:
    def __init__(self, state):
        self.state, self.param_groups = state, []

observers, marks = [], []
cuda = _Cuda("torch.cuda")
nn = types.SimpleNamespace(Module=Module)
optim = types.SimpleNamespace(Optimizer=Optimizer)
_C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append)

class _Range:
    def __init__(self, name): marks.append(name)
    def __enter__(self): return self
    def __exit__(self, *_): return None

autograd = types.SimpleNamespace(profiler=types.SimpleNamespace(record_function=_Range))
__version__ = "0.0"
"""


@pytest.fixture
def example(examples: Path) -> Path:
    return examples / "loss_accumulate.pickle.gz"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, example: Path) -> Iterator[Any]:
    module = types.ModuleType("torch")
    exec(FAKE.format(example=str(example)), module.__dict__)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(gpuheap.record.__globals__["_active"], "observed", False)
    yield module
    assert gpuheap.record.__globals__["_active"].recording is None


def test_a_recording_is_written_and_explained(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.gpuheap"
    with gpuheap.record(path, stacks="all", max_entries=77) as recording:
        assert "under way" in repr(recording)
    report = recording.report()
    assert report["verdict"]["kind"] == "leak"
    assert report["source"]["format"] == "gpuheap-recording"
    assert any("Card, has 4.00 GiB: 2.00 GiB were free" in note for note in report["source"]["notes"])
    started = torch.cuda.memory.started
    assert started[0] == ("all", {"context": "alloc", "max_entries": 77, "stacks": "all"})
    assert started[-1] == (None, {})


def test_names_decide_classes(torch: Any, tmp_path: Path, example: Path) -> None:
    with gzip.open(example) as file:
        snapshot = pickle.load(file)
    held = [
        block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"
    ]
    held.sort(key=lambda block: block["size"])
    weight, moment, gradient = (torch.Tensor(block["address"]) for block in held[-3:])
    weight.grad = gradient
    model = torch.Module(weight=weight)
    optimizer = torch.Optimizer({weight: {"exp_avg": moment, "step": 3}})
    with gpuheap.record(tmp_path / "run.gpuheap") as recording:
        pass
    rules = {rule["rule"]: rule for rule in recording.report(at="end")["classes"]}
    for kind, block in zip(
        ("named as a parameter or buffer", "named as an optimizer's state", "named as a gradient"),
        held[-3:],
        strict=True,
    ):
        rule = rules[f"{kind} by the program"]
        assert (rule["bytes"], rule["blocks"]) == (block["size"], 1)
    del model, optimizer


def test_one_recording_at_a_time(torch: Any, tmp_path: Path) -> None:
    with gpuheap.record(tmp_path / "a.gpuheap") as recording:
        with pytest.raises(Error, match=r"a recording to `.*a\.gpuheap` is under way"):
            gpuheap.record(tmp_path / "b.gpuheap").start()
        with pytest.raises(Error, match="under way already"):
            recording.start()
    assert recording.stop() is recording
    with pytest.raises(Error, match="it is not under way"):
        recording.save()
    assert not (tmp_path / "b.gpuheap").exists()


def test_a_decorated_function_is_recorded_at_each_call(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.gpuheap"

    @gpuheap.record(path, snapshot=tmp_path / "run.pickle")
    def train(steps: int, *, rate: float) -> float:
        """Trains."""
        return steps * rate

    assert (train(3, rate=0.5), train.__name__, train.__doc__) == (1.5, "train", "Trains.")
    path.unlink()
    assert train(4, rate=0.5) == 2.0
    assert path.exists()
    assert pickle.loads((tmp_path / "run.pickle").read_bytes())["segments"]

    async def coroutine() -> None: ...

    with pytest.raises(Error, match="coroutines return before they run"):
        gpuheap.record(path)(coroutine)


def test_an_out_of_memory_goes_on_unchanged_and_is_explained(
    torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError) as caught, gpuheap.record(tmp_path / "run.gpuheap"):
        torch.observers[0](0, 1, 2, 3)
        assert (tmp_path / "run.gpuheap").exists()
        raise error
    assert caught.value is error
    assert "gpuheap: Leak: +7.00 MiB per optimizer step" in capsys.readouterr().err
    # Another error is the program's business.
    with pytest.raises(ValueError), gpuheap.record(tmp_path / "other.gpuheap"):
        raise ValueError
    assert capsys.readouterr().err == ""


def test_a_recording_that_cannot_be_written(torch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "run.gpuheap"
    with pytest.raises(Error, match="Failed to write"), gpuheap.record(path):
        pass
    with pytest.raises(KeyError), gpuheap.record(path):
        raise KeyError("the program's own")
    assert "Failed to write" in capsys.readouterr().err
    assert torch.cuda.memory.started[-1] == (None, {})


def test_steps_are_marked_while_a_recording_is_under_way(torch: Any, tmp_path: Path) -> None:
    gpuheap.step()
    with gpuheap.record(tmp_path / "run.gpuheap"):
        gpuheap.step()
        gpuheap.step()
    gpuheap.step()
    assert torch.marks == ["ProfilerStep#0", "ProfilerStep#1"]


@pytest.mark.parametrize(("options", "cause"), [({"stacks": "some"}, "`stacks` is"), ({"max_entries": 0}, "is 0")])
def test_options_that_are_none(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(Error, match=cause):
        gpuheap.record("run.gpuheap", **options)


def test_without_a_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Error, match="PyTorch sees no GPU"):
        gpuheap.record("run.gpuheap").start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Nothing to run"),
        (["-o"], "needs a value"),
        (["--max-entries", "many", __file__], "needs a number, not `many`"),
        (["--fast", __file__], "Unexpected option `--fast`"),
        (["no-such.py"], "no such file"),
        (["-m"], "needs the name of a module"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded.run(arguments) == 2
    assert message in capsys.readouterr().err


def test_arguments() -> None:
    parse = recorded._parse
    assert parse(["-o", "a", "--stacks=all", __file__, "-o", "b"]) == (
        {"path": "a", "stacks": "all"},
        False,
        [__file__, "-o", "b"],
    )
    assert parse(["--max-entries", "5", "-m", "json.tool", "-h"]) == ({"max_entries": 5}, True, ["json.tool", "-h"])
    assert parse(["-h"]) == (None, False, [])


class Program:
    """A script beside a PyTorch that is none."""

    def __init__(self, folder: Path, example: Path) -> None:
        self.folder = folder
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text(FAKE.format(example=str(example)))

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "train.py").write_text(textwrap.dedent(script))
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def program(tmp_path: Path, example: Path) -> Program:
    return Program(tmp_path, example)


def test_a_program_is_recorded_without_a_change(program: Program) -> None:
    script = """
        import sys
        print(__name__, sys.argv, "torch" in sys.modules)
        import torch
        print(torch.__loader__.__class__.__name__, len(torch.cuda.memory.started))
        sys.exit(3)
    """
    done = program.run(script, "-m", "gpuheap", "record", "-o", "run.gpuheap", "train.py", "--rate", "1")
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["__main__ ['train.py', '--rate', '1'] False", "SourceFileLoader 1"]
    assert gpuheap.explain(program.folder / "run.gpuheap")["verdict"]["kind"] == "leak"


def test_a_program_without_pytorch_is_left_alone(program: Program) -> None:
    done = program.run("print('done')", "-m", "gpuheap", "record", "-o", "run.gpuheap", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert not (program.folder / "run.gpuheap").exists()


def test_the_environment_variable_records(program: Program) -> None:
    script = """
        import sys
        from gpuheap import recorded
        recorded.at_start()  # what the wheel's .pth file does when Python starts
        import torch
    """
    done = program.run(script, "train.py", GPUHEAP_RECORD="run.gpuheap")
    assert (done.returncode, done.stderr) == (0, "")
    assert gpuheap.explain(program.folder / "run.gpuheap")["verdict"]["kind"] == "leak"
    (program.folder / "run.gpuheap").unlink()
    assert program.run(script, "train.py").returncode == 0
    assert not (program.folder / "run.gpuheap").exists()


def test_the_wheel_starts_recordings(program: Program) -> None:
    site = Path(gpuheap.__file__).parents[1]
    if not (site / "gpuheap-record.pth").exists():
        assert site.name != "site-packages", "the wheel has the file"
        pytest.skip("not installed from a wheel")
    done = program.run("import torch", "train.py", GPUHEAP_RECORD="run.gpuheap")
    assert (done.returncode, done.stderr) == (0, "")
    assert (program.folder / "run.gpuheap").exists()
