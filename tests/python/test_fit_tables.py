"""The tables that hold predictions against what was measured."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "gpu"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, GPU / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = loaded("fit_table")
GIB = 1 << 30


def row(
    model: str, real: float, ours: float, *, reserved: float | None = None, calibration: bool = False
) -> dict[str, Any]:
    taken = int(real * GIB)
    guess = int((reserved if reserved is not None else ours) * GIB)
    return {
        "run": f"{model}:8:none",
        "real": {
            "model": model,
            "batch": 8,
            "setting": "none",
            "calibration": calibration,
            "how": "in process",
            "peak_allocated": taken,
            "peak_reserved": taken,
            "accelerate": taken // 4,
            "step_us": 1000,
        },
        "ours": {
            "allocated": int(ours * GIB),
            "reserved": guess,
            "high": guess + GIB,
            "context": GIB,
            "phase": "backward",
            "step_us": 1100,
        },
        "memtracker": {"peak_allocated": int(0.9 * taken)},
    }


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert table.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert table.quantile([float(one) for one in range(100)], 0.95) == 95.0
    assert table.quantile([1.0], 0.95) == 1.0


def test_errors_are_signed_and_leave_out_what_has_no_prediction() -> None:
    rows = [row("a", 10, 11), row("b", 10, 9)]
    rows[1]["memtracker"] = {"error": "fails"}
    assert table.errors(rows, "gpuheap", "allocated") == pytest.approx([0.1, -0.1])
    assert table.errors(rows, "MemTracker", "allocated") == pytest.approx([-0.1])
    assert table.errors(rows, "accelerate", "reserved") == pytest.approx([-0.75, -0.75])


def test_a_false_fit_needs_a_budget_between_the_prediction_and_the_truth() -> None:
    exact, low, high = row("a", 10, 10), row("b", 10, 9.5), row("c", 10, 10.5)
    assert table.false_fits([exact], "gpuheap")[:2] == (0, 0)
    wrong, refused, total = table.false_fits([low], "gpuheap")
    assert (wrong, refused, total) == (5, 0, 31)
    assert table.false_fits([high], "gpuheap")[:2] == (0, 5)


def test_the_report_keeps_calibration_apart_and_names_what_failed() -> None:
    rows = [row("seen", 10, 10, calibration=True), row("new", 10, 10.2), row("broken", 10, 10)]
    rows[2]["ours"] = {"error": "cannot be traced"}
    fresh = [{**rows[1]["real"], "how": "fresh process", "peak_reserved": 1}]
    text = table.report(rows, {"device": "H200", "torch": "2.11"}, fresh)
    assert "2 runs of 2 models that no rule was learnt from" in text
    assert "- broken:8:none: cannot be traced" in text
    assert "| gpuheap | 2 | 1 | 2.0 % |" in text
    assert "Models that rules were learnt from" in text
    assert "| new:8:none | 10,737,418,240 | the same | 1 | 10,737,418,240 |" in text


def test_the_zoo_is_whole() -> None:
    pytest.importorskip("torch")
    sys.path.insert(0, str(GPU))
    try:
        zoo = loaded("zoo")
    finally:
        sys.path.remove(str(GPU))
    assert len(zoo.MODELS) >= 24 and 1 <= len(zoo.CALIBRATION) <= 7
    assert not set(zoo.EXAMINED) - set(zoo.MODELS) and not set(zoo.EXAMINED) & set(zoo.CALIBRATION)
    for name, spec in zoo.MODELS.items():
        assert len(spec.batches) >= 3, name
        assert all(setting in zoo.SETTINGS for setting in zoo.settings_of(name)), name
        assert spec.blocks is not None or not any("checkpoint" in one for one in zoo.settings_of(name)), name
    assert callable(zoo.__getattr__("resnet50__b64__autocast_bf16"))
    with pytest.raises(AttributeError):
        zoo.__getattr__("no_such_model")
    with pytest.raises(KeyError, match="no model 'nothing'"):
        zoo.make_for("nothing")
