"""The tracer's command: what it reads, what it writes, and how it fails."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
print("made")
def make():
    model = torch.nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda model, batch: model(batch).sum(), torch.randn(4, 8)
def number():
    return 5
def three():
    return make()[:3]
def no_loss():
    model = torch.nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters(), 0.1), None, (torch.randn(4, 8), torch.randn(4, 8))
def frozen():
    model = torch.nn.Linear(8, 8).requires_grad_(False)
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.MSELoss(), (torch.randn(4, 8), torch.randn(4, 8))
value = 3
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "gpuheap._fit", *arguments)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_a_trace_is_written_whole(folder: Path) -> None:
    done = run(folder, "trace", "train.py:make", "--out", "t.json.gz", "--batch", "6")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "progress: tracing step 2" in done.stderr.splitlines()
    trace = json.loads(gzip.decompress((folder / "t.json.gz").read_bytes()))
    assert trace["schema"] == "gpuheap.fit.trace/1"
    assert trace["source"]["make"] == "train.py:make"
    assert trace["batch"]["leaves"] == [{"name": "batch", "shape": [6, 8], "dtype": "float32"}]
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["t.json.gz", "train.py"]


def test_nothing_but_the_trace_on_standard_output(folder: Path) -> None:
    done = run(folder, "trace", "train.py:make")
    assert json.loads(done.stdout)["batch"]["size"] == 4
    assert "made" in done.stderr


# Importing PyTorch takes longer than to refuse, so that one process refuses them all.
BAD = [
    (["train.py"], "names no function"),
    (["other.py:make"], "other.py is not there"),
    (["train.py:build"], "train.py has no 'build'"),
    (["train.py:value"], "is of type int, and not a function"),
    (["train.py:number"], "make() returned int"),
    (["train.py:three"], "make() returned no batch"),
    (["train.py:no_loss"], "without a loss, Linear gets the whole batch, which it does not take"),
    (["train.py:frozen"], "return None as the optimizer to plan for evaluation"),
    (["broken.py:make"], "broken.py is not valid Python"),
    (["raises.py:make"], "raises.py fails when it is imported: ModuleNotFoundError"),
    (["raises.py:make"], "name the one that has the packages: `gpuheap fit --python PATH`"),
    (["train.py:make", "--batch", "0"], "a batch of 0 samples"),
    (["train.py:make", "--phase", "training"], "there is no phase 'training'"),
    (["train.py:make", "--phase", "generation"], "has no generate()"),
    (["train.py:make", "--apply", "none.json"], "none.json cannot be read"),
    (["train.py:make", "--apply", "train.py"], "train.py is no JSON"),
    (["train.py:make", "--capability", "new"], "no compute capability"),
    (["train.py:make", "--out", "no/such/folder/t.json"], "cannot be written"),
]
REFUSES = """
import contextlib, io, json, sys
from gpuheap._fit.__main__ import main
for arguments in json.loads(sys.argv[1]):
    said, written = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(written):
        code = main(["trace", "--out", "t.json", *arguments])
    print(json.dumps([code, said.getvalue()]))
"""


def test_bad_input(folder: Path) -> None:
    (folder / "broken.py").write_text("def make(:\n")
    (folder / "raises.py").write_text("import no_such_module_of_mine\n")
    done = python(folder, "-c", REFUSES, json.dumps([arguments for arguments, _ in BAD]))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (arguments, words), (code, said) in zip(BAD, answers, strict=True):
        assert code == 2, arguments
        assert words in said, arguments
        assert "Traceback" not in said
    assert not (folder / "t.json").exists()


def test_an_interruption_is_no_traceback(folder: Path) -> None:
    (folder / "train.py").write_text(f"{PROGRAM}\ndef stops():\n    raise KeyboardInterrupt\n")
    done = run(folder, "trace", "train.py:stops", "--out", "t.json")
    assert done.returncode == 130 and "error: interrupted" in done.stderr and "Traceback" not in done.stderr


def test_a_thread_that_never_ends_is_not_waited_for(folder: Path) -> None:
    (folder / "train.py").write_text(
        f"{PROGRAM}\nimport threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    )
    assert run(folder, "trace", "train.py:make", "--out", "t.json").returncode == 0
    assert (folder / "t.json").exists()


def test_programs_that_fail_oddly(folder: Path) -> None:
    program = """
class Odd(Exception):
    def __str__(self): raise RuntimeError
def raises(): raise Odd
class Outside(BaseException): pass
def outside(): raise Outside("neither an error nor an exit")
def long(): raise ValueError("x" * 100_000)
class Broken:
    def __getattr__(self, name): raise RuntimeError("no " + name)
def broken(): return Broken()
def bar():
    print("50%", end="")
    raise ValueError("half way")
"""
    (folder / "odd.py").write_text(program)
    (folder / "imported.py").write_text(f"{program}\nraise Outside('at once')\n")
    (folder / "unsaid.py").write_text(f"{program}\nraise Odd\n")
    for name, words in (
        ("odd.py:raises", "Odd"),
        ("odd.py:outside", "Outside: neither an error nor an exit"),
        ("odd.py:long", "ValueError: xxx"),
        ("odd.py:broken", "RuntimeError: no "),
        ("odd.py:bar", "ValueError: half way"),
        ("imported.py:bar", "imported.py fails when it is imported: Outside: at once"),
        ("unsaid.py:bar", "unsaid.py fails when it is imported: Odd"),
    ):
        done = run(folder, "trace", name)
        assert len(done.stderr) < 5000
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        assert any(line.startswith("error: ") and words in line for line in done.stderr.splitlines()), done.stderr
    (folder / "card.py").write_text("raise RuntimeError('Found no NVIDIA driver on your system.')\n")
    done = run(folder, "trace", "card.py:make")
    assert done.returncode == 2 and "Bring the model to the GPU within make()" in done.stderr, done.stderr
    (folder / "torch.py").write_text("")
    done = run(folder, "trace", "train.py:make")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "torch.py is not PyTorch" in done.stderr


def test_a_loop_without_an_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gpuheap._fit import recorder
    from gpuheap._fit.errors import TraceError
    from gpuheap._fit.trace import trace

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        value = model(batch).sum()
        while value.item() < 1e9:
            value = value + 1
        return value

    def make() -> tuple[object, ...]:
        model = torch.nn.Linear(8, 8)
        return model, torch.optim.SGD(model.parameters(), 0.1), loss, torch.randn(4, 8)

    monkeypatch.setattr(recorder, "_MOST_EVENTS", 2000)
    with pytest.raises(TraceError, match="does not come to an end") as caught:
        trace(make)
    assert "the value of a tensor" in str(caught.value)
