"""The calibration of a GPU, as far as it goes without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuheap._fit import calibrate
from gpuheap._fit.known_device import is_named, keep, kept

FOUND: dict[str, Any] = {
    "flops_per_second": {"float32": 51e12, "bfloat16": 785e12},
    "memory_bytes_per_second": 4.2e12,
    "link_bytes_per_second": 55e9,
    "kernel_us": 2.5,
    "launch_us": 6.9,
    "multiprocessors": 132,
}


def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = tmp_path / "fit-H200.json"
    assert calibrate.main(["--device", "H200", "--calibration", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "error: times are calibrated on a GPU, and " in said.err and "hint: " in said.err
    assert not path.exists()


def test_what_was_measured_is_kept_and_old_factors_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "measured", lambda device, say: FOUND)
    path = tmp_path / "settings" / "fit-H200.json"
    keep(path, {"device": "H200", "time_factor": 1.4, "context_bytes": 7, "peak_error": 0.01, "runs": 3})
    assert calibrate.main(["--device", "H200", "--calibration", str(path)]) == 0
    told = capsys.readouterr().out
    assert "products, float32" in told and "51.0 TFLOP/s" in told and "6.9 us" in told
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["measured"] == FOUND
    assert (found["time_factor"], found["runs"], found["context_bytes"]) == (1.0, 0, 7)


def test_what_is_about_another_device_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    assert kept(path, "H200") == {}
    path.write_text("no JSON", encoding="utf-8")
    assert kept(path, "H200") == {}
    keep(path, {"device": "A100", "runs": 1})
    assert kept(path, "H200") == {} and kept(path, "A100")["runs"] == 1


def test_full_names_of_devices_are_those_of_plans() -> None:
    assert is_named("NVIDIA H200", "H200") and is_named("NVIDIA GeForce RTX 4090", "rtx-4090")
    assert not is_named("NVIDIA H200", "A100")


def test_a_verification_leaves_what_was_measured(tmp_path: Path) -> None:
    from gpuheap._fit.verify import _learnt

    path = tmp_path / "fit.json"
    keep(path, {"device": "H200", "time_factor": 1.0, "runs": 0, "measured": FOUND})
    real = {"fits": True, "step_us": 110.0, "allocated_bytes": 100, "context_bytes": 5, "device": "NVIDIA H200"}
    plan = {"device": "H200", "step_us": 100.0, "peak": {"allocated_bytes": 100}}
    learnt = _learnt(plan, real, path)
    assert learnt is not None
    assert learnt["measured"] == FOUND and learnt["runs"] == 1
    assert learnt["time_factor"] == pytest.approx(1.1)
