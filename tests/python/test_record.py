"""`gpuheap.record`, with a PyTorch that is none: it plays a real snapshot back."""

from __future__ import annotations

import gzip
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuheap
from gpuheap.errors import Error
from support_torch import installed


@pytest.fixture
def example(examples: Path) -> Path:
    return examples / "loss_accumulate.pickle.gz"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, example: Path) -> Iterator[Any]:
    yield from installed(monkeypatch, example)


def test_a_recording_is_written_and_explained(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.gpuheap"
    with gpuheap.record(path, stacks="all", max_entries=77) as recording:
        assert "under way" in repr(recording)
    report = recording.report()
    assert report["verdict"]["kind"] == "leak"
    assert report["source"]["format"] == "gpuheap-recording"
    assert report["source"]["device_bytes"] == 4 << 30
    outside = {part["part"]: part["bytes"] for part in report["ledger"] if part["kind"] == "outside"}
    assert set(outside) == {"context, libraries, other processes", "free on the device"}
    assert outside["context, libraries, other processes"] == 1 << 30
    assert sum(part["bytes"] for part in report["ledger"]) == 4 << 30
    facts = report["source"]["facts"]
    assert facts["PyTorch"] == "0.0" and facts["CUDA"] == "13.0" and facts["GPU"] == "Card"
    assert facts["gpuheap"] == gpuheap.__version__
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
    with pytest.raises(Error, match="there is no folder") as caught:
        gpuheap.record(path).start()
    assert caught.value.hint == "make the folder first"
    with pytest.raises(Error, match="it is a folder"):
        gpuheap.record(tmp_path / "run.gpuheap", snapshot=tmp_path).start()
    assert torch.cuda.memory.started == []
    path.parent.mkdir()
    with pytest.raises(Error, match="Failed to write"), gpuheap.record(path):
        path.parent.rmdir()
    path.parent.mkdir()
    with pytest.raises(KeyError), gpuheap.record(path):
        path.parent.rmdir()
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


def stacks_of(path: Path) -> list[str]:
    csv = path.with_suffix(".csv")
    assert gpuheap.main(["export", os.fspath(path), "--to", "csv", "-o", os.fspath(csv)]) == 0
    return csv.read_text().splitlines()


def test_stacks_between_stretches_are_told(
    torch: Any, tmp_path: Path, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(example) as file:
        snapshot = pickle.load(file)
    trace = snapshot["device_traces"][0]
    times = [event["time_us"] for event in trace]
    gap = (times[len(times) // 2], times[len(times) * 6 // 10])
    hidden = 0
    for event in trace:
        if gap[0] <= event["time_us"] <= gap[1] and event["action"] == "alloc" and event["frames"]:
            event["frames"] = []
            hidden += 1
    assert hidden > 100
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    with gpuheap.record(tmp_path / "run.gpuheap") as recording:
        assert recording._pace is not None
        recording._pace.gaps.append(gap)
    report = recording.report()
    assert report["verdict"]["kind"] == "leak"
    (note,) = [note for note in report["source"]["notes"] if "stacks were recorded in stretches" in note]
    assert "% right where that could be checked" in note
    with_all = tmp_path / "all.gpuheap"
    gpuheap.convert(example, with_all)
    assert gpuheap.explain(with_all)["verdict"]["site"] == report["verdict"]["site"]
    rows = list(zip(stacks_of(Path(recording.path)), stacks_of(with_all), strict=True))
    assert sum(a == b for a, b in rows) >= 0.98 * len(rows) > 2000


def test_walks_go_off_and_on_and_are_on_with_a_share_of_one(torch: Any, tmp_path: Path) -> None:
    with gpuheap.record(tmp_path / "run.gpuheap", max_entries=5) as recording:
        assert recording._pace is not None
        recording._pace._set(False)
    assert ("all", {"context": None, "max_entries": 5, "stacks": "python"}) in torch.cuda.memory.started
    assert torch.cuda.memory.started[-1] == (None, {})
    assert not any("clear_history" in options for _, options in torch.cuda.memory.started)
    for options in ({"stack_share": 1.0}, {"stacks": "all"}):
        with gpuheap.record(tmp_path / "run.gpuheap", **options) as recording:
            assert recording._pace is None


def test_a_pytorch_that_clears_its_history_is_left_alone(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def before(enabled: str | None = "all", *, context: str = "", max_entries: int = 0, stacks: str = "") -> None: ...

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", before)
    with gpuheap.record(tmp_path / "run.gpuheap") as recording:
        assert recording._pace is None


def test_what_modules_made_has_their_names(torch: Any, tmp_path: Path, example: Path) -> None:
    with gzip.open(example) as file:
        snapshot = pickle.load(file)
    held = [
        block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"
    ]
    block = max(held, key=lambda block: block["size"])
    encoder = torch.Module()
    with gpuheap.record(tmp_path / "run.gpuheap", activations=True) as recording:
        (hook,) = torch.forward_hooks
        output = {"logits": [torch.Tensor(block["address"]), 7], "self": None}
        output["self"] = output
        hook(encoder, (), output)
        hook(encoder, (), object())
        torch.compiler.is_compiling = lambda: True
        hook(encoder, (), torch.Tensor(1))
    assert torch.forward_hooks == []
    (named,) = recording.report(at="end")["named"]
    assert (named["name"], named["class"], named["bytes"]) == ("Module", "activations", block["size"])


def test_a_recording_is_saved_while_it_goes_on(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuheap._record.beat.FIRST_SAVE", 0.0)
    path = tmp_path / "run.gpuheap"
    with gpuheap.record(path) as recording:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert recording.report()["verdict"]["kind"] == "leak"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"stacks": "some"}, "`stacks` is"),
        ({"max_entries": 0}, "is 0"),
        ({"stack_share": 0}, "`stack_share` is 0"),
        ({"stack_share": float("nan")}, "`stack_share` is nan"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(Error, match=cause):
        gpuheap.record("run.gpuheap", **options)


def test_without_a_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Error, match="PyTorch sees no GPU"):
        gpuheap.record("run.gpuheap").start()
