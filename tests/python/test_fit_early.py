"""Comparing with measured runs: the batch's first copy, which the measuring program has on the GPU before the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

GPU = str(Path(__file__).parents[2] / "gpu")


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(GPU)
    import fit_early

    return fit_early


def trace() -> dict[str, Any]:
    return {
        "storages": {
            "bytes": [100, 50],
            "class": ["parameter", "input"],
            "module": [0, -1],
            "dtype": ["float32", "int64"],
            "name": ["weight", ""],
        },
        "events": [
            *(["phase", "setup"], ["alloc", 0], ["phase", "load"], ["alloc", 1]),
            *(["step", 1], ["phase", "forward"]),
        ],
    }


def test_it_is_there_before_the_model_and_goes_once_the_batch_is_loaded(early: Any) -> None:
    before = trace()
    found = early.with_early_batch(before, "mlp", 256, "none")
    rows, classes = 256 * 1024 * 4, 256 * 8
    assert found["storages"]["bytes"] == [100, 50, rows, classes]
    assert {len(column) for column in found["storages"].values()} == {4}
    assert found["events"][:3] == [["phase", "setup"], ["alloc", 2], ["alloc", 3]]
    loaded = found["events"].index(["step", 1])
    assert found["events"][loaded - 2 : loaded] == [["free", 2], ["free", 3]]
    # The trace itself stays as it was.
    assert before == trace()


def test_it_is_in_the_precision_of_the_setting(early: Any) -> None:
    assert early.batch_bytes("mlp", 256, "params_bf16") == [256 * 1024 * 2, 256 * 8]
    # A program that makes two tensors of one storage has the storage once.
    assert early.batch_bytes("bert_base", 4, "none") == [4 * 512 * 8]


def test_settings_of_the_allocator_use_the_plain_trace(early: Any) -> None:
    import fit_compare

    plain = fit_compare.trace_path(Path("x"), "mlp:256:none")
    assert fit_compare.trace_path(Path("x"), "mlp:256:expandable") == plain
    assert fit_compare.trace_path(Path("x"), "mlp:256:fused") != plain
    assert "fit_early" in sys.modules
