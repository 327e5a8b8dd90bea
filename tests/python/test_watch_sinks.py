"""Where health goes: stand-ins with the interfaces of the real trackers, in modules of their names."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpuheap
from gpuheap._watch.health import METRICS
from gpuheap._watch.rank import rank

MIB = 1 << 20


def source() -> Mapping[str, Any]:
    return {
        "allocated": 100 * MIB,
        "blocks": 40,
        "reserved": 200 * MIB,
        "peak_active": 150 * MIB,
        "peak_reserved": 200 * MIB,
        "free": 700 * MIB,
        "total": 1000 * MIB,
        "others": 50 * MIB,
    }


EXPECTED = {
    "gpuheap/allocated_bytes": 100 * MIB,
    "gpuheap/blocks": 40,
    "gpuheap/reserved_bytes": 200 * MIB,
    "gpuheap/waste": 0.25,
    "gpuheap/free_bytes": 700 * MIB,
    "gpuheap/total_bytes": 1000 * MIB,
    "gpuheap/outside_bytes": 50 * MIB,
    "gpuheap/others_bytes": 50 * MIB,
    "gpuheap/growth_bytes_per_step": 0.0,
    "gpuheap/retries": 0,
    "gpuheap/ooms": 0,
    "gpuheap/sick": 0,
}


def run(to: Any, steps: int = 20, source: Any = source) -> None:
    with gpuheap.watch(10, to, source=source):
        for _ in range(steps):
            gpuheap.step()


def two() -> Mapping[str, Any]:
    return {"cuda:0": source(), "cuda:1": source()}


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def kind(name: str, of: str) -> Any:
    """A class as if it were defined in the module `of`."""
    return type(name, (), {"__module__": of})


@pytest.fixture(params=["torch.utils.tensorboard.writer", "tensorboardX.writer"])
def writer(request: pytest.FixtureRequest) -> Any:
    class Own(kind("SummaryWriter", request.param)):  # type: ignore[misc]
        """A program may derive its own."""

        def __init__(self) -> None:
            self.scalars: list[tuple[str, float, int]] = []

        def add_scalar(self, tag: str, value: float, global_step: int) -> None:
            self.scalars.append((tag, value, global_step))

    return Own()


def test_tensorboard(writer: Any) -> None:
    run(writer)
    assert {tag: value for tag, value, step in writer.scalars if step == 20} == EXPECTED
    assert {step for _, _, step in writer.scalars} == {10, 20}


def test_names_of_several_devices(writer: Any) -> None:
    run(writer, source=two)
    tags = {tag for tag, _, _ in writer.scalars}
    assert {"gpuheap/cuda0/allocated_bytes", "gpuheap/cuda1/allocated_bytes"} < tags
    assert len(tags) == 2 * len(EXPECTED)


class Run(kind("Run", "wandb.sdk.wandb_run")):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        # A row of its own, or one at a step of ours, would take the program's own rows away.
        assert step is None and commit is False
        self.rows.append(data)


def test_wandb_run_and_module(monkeypatch: pytest.MonkeyPatch) -> None:
    given, current = Run(), Run()
    wandb = module(monkeypatch, "wandb")
    wandb.run = current
    for to, written in ((given, given), (wandb, current), ("wandb", current)):
        written.rows.clear()
        run(to)
        assert written.rows[-1] == {**EXPECTED, "gpuheap/step": 20}


def test_wandb_without_a_run_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    module(monkeypatch, "wandb").run = None
    run("wandb")
    assert [record.getMessage() for record in caplog.records] == [
        "a sink of the watch failed and is left out: Wandb: RuntimeError: no run is under way: call `wandb.init()` "
        "before the watch begins"
    ]


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = module(monkeypatch, "mlflow")
    rows: list[tuple[dict[str, float], int]] = []
    mlflow.log_metrics = lambda metrics, step: rows.append((metrics, step))
    run(mlflow)
    run("mlflow")
    assert rows == [(EXPECTED, 10), (EXPECTED, 20)] * 2


class Gauge:
    def __init__(self) -> None:
        self.values: list[tuple[float, Mapping[str, Any]]] = []

    def set(self, amount: float, attributes: Mapping[str, Any]) -> None:
        self.values.append((amount, attributes))


class Meter(kind("Meter", "opentelemetry.sdk.metrics._internal")):  # type: ignore[misc]
    def __init__(self) -> None:
        self.gauges: dict[str, Any] = {}

    def create_gauge(self, name: str, unit: str) -> Gauge:
        self.gauges[name] = Gauge()
        return self.gauges[name]


class OldMeter(kind("Meter", "opentelemetry.sdk.metrics._internal")):  # type: ignore[misc]
    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def create_observable_gauge(self, name: str, callbacks: list[Any], unit: str) -> None:
        self.callbacks[name] = callbacks[0]


def test_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, shared = Meter(), Meter()
    metrics = module(monkeypatch, "opentelemetry.metrics")
    metrics.get_meter = lambda name: {"gpuheap": shared}[name]
    for to, written in ((meter, meter), ("otel", shared)):
        run(to, source=two)
        assert set(written.gauges) == {f"gpuheap/{name}" for name in METRICS}
        assert written.gauges["gpuheap/allocated_bytes"].values[-2:] == [
            (100 * MIB, {"device": "cuda:0"}),
            (100 * MIB, {"device": "cuda:1"}),
        ]


def test_opentelemetry_before_it_had_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = module(monkeypatch, "opentelemetry.metrics")
    metrics.Observation = lambda value, attributes: (value, attributes)
    meter = OldMeter()
    run(meter)
    assert meter.callbacks["gpuheap/waste"](None) == [(0.25, {"device": "memory"})]
    assert meter.callbacks["gpuheap/steps_left"](None) == []


def test_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "health.jsonl"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "3")
    to = Path("health.jsonl")
    watch = gpuheap.watch(10, to, source=two)
    # A program that changes its folder goes on writing to the same file.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with watch:
        for _ in range(10):
            watch.step()
            # Every line is there at once.
        assert len(path.read_text().splitlines()) == 2
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["device"] for row in rows] == ["cuda:0", "cuda:1"]
    assert rows[0]["rank"] == 3
    assert rows[0]["allocated_bytes"] == 100 * MIB
    assert rows[0]["kind"] == "steady"
    # Further runs are added.
    run(str(path))
    assert len(path.read_text().splitlines()) == 4


def test_loggers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = logging.getLogger("test_watch.own")
    run([own, logging.LoggerAdapter(own, {}), "log"])
    assert [record.name for record in caplog.records] == ["test_watch.own", "test_watch.own", "gpuheap"]
    assert {record.getMessage() for record in caplog.records} == {
        "step 10: Healthy: 100 MiB allocated and 200 MiB reserved, 25 % of it never in use; no leak in 6 steps judged"
    }


def test_the_rank_is_in_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("RANK", "1")
    run("log", source=two)
    assert caplog.messages[0].startswith("step 10 (rank 1, cuda:0): Healthy")


def test_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert rank() is None
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert rank() == 5
    distributed = module(monkeypatch, "torch.distributed")
    distributed.is_available = distributed.is_initialized = lambda: True
    distributed.get_world_size, distributed.get_rank = lambda: 8, lambda: 2
    assert rank() == 2


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, health: gpuheap.Health) -> None:
        self.calls += 1
        raise ValueError("no room")


def test_a_sink_that_raises_is_told_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken, seen = Broken(), list[gpuheap.Health]()
    run([broken, seen.append], steps=40)
    assert broken.calls == 1
    assert len(seen) == 4
    assert caplog.messages == ["a sink of the watch failed and is left out: Call: ValueError: no room"]


def test_ctrl_c_in_a_sink_is_not_swallowed() -> None:
    def sink(_: gpuheap.Health) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sink)


def test_metrics_leave_out_what_is_not_known() -> None:
    seen: list[gpuheap.Health] = []
    run(seen.append, source=lambda: {"allocated": 5})
    assert set(seen[-1].metrics()) == {
        "allocated_bytes",
        "reserved_bytes",
        "growth_bytes_per_step",
        "retries",
        "ooms",
        "sick",
    }


# Trainers


@pytest.fixture
def trainers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module(monkeypatch, "transformers").TrainerCallback = type("TrainerCallback", (), {})
    module(monkeypatch, "lightning.pytorch").Callback = type("Callback", (), {})
    callbacks = module(monkeypatch, "keras.callbacks")
    callbacks.Callback = type("Callback", (), {})
    module(monkeypatch, "keras").callbacks = callbacks
    yield


def test_hugging_face(trainers: None) -> None:
    seen: list[gpuheap.Health] = []
    callback = gpuheap.watch(10, seen.append, source=source).hf_callback()
    assert isinstance(callback, sys.modules["transformers"].TrainerCallback)  # type: ignore[attr-defined]
    arguments = {"args": None, "state": None, "control": None}
    callback.on_train_begin(*arguments, model=None)
    for _ in range(15):
        callback.on_step_end(*arguments, model=None)
    callback.on_train_end(*arguments, model=None)
    gpuheap.step()
    assert [health.step for health in seen] == [10, 15]


class Trainer:
    def __init__(self) -> None:
        self.global_step = 0
        self.loggers = [self]
        self.logged: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((metrics, step))


def test_lightning(trainers: None) -> None:
    seen: list[gpuheap.Health] = []
    watch = gpuheap.watch(10, seen.append, source=source)
    callback, trainer = watch.lightning_callback(), Trainer()
    for _ in range(2):
        callback.on_train_start(trainer, None)
        for batch in range(40):
            # Two batches a step.
            trainer.global_step += batch % 2
            callback.on_train_batch_end(trainer, None, None, None, batch)
        callback.on_train_end(trainer, None)
    assert [health.step for health in seen] == [10, 20, 10, 20]
    assert [step for _, step in trainer.logged] == [10, 20, 30, 40]
    assert trainer.logged[0][0] == EXPECTED
    assert len(watch._sinks) == 1
    callback.on_train_start(trainer, None)
    callback.on_exception(trainer, None, ValueError())
    assert not watch._running


def test_keras(trainers: None) -> None:
    seen: list[gpuheap.Health] = []
    callback = gpuheap.watch(10, seen.append, source=source).keras_callback()
    callback.on_train_begin({})
    for batch in range(12):
        callback.on_train_batch_end(batch, {"loss": 1.0})
    callback.on_train_end()
    assert [health.step for health in seen] == [10, 12]


def test_a_framework_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpuheap._watch.callbacks as callbacks

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(callbacks, "import_module", missing)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(gpuheap.Error, match=r"`lightning\.pytorch` is not installed"):
        gpuheap.watch(to=[], source=source).lightning_callback()
