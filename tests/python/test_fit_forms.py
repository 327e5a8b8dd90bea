"""Programs in forms that people write: each is traced as the plain one is, or told what to change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

HERE = Path(__file__).parent
ALIKE = (
    "shuffled", "with_maker_first", "with_scheduler", "generator", "generator_function", "loader", "arrays", "net",
)  # fmt: skip
ERRORS = {
    "class_of_optimizer": ["is the class Adam", "Adam(model.parameters(), ...)"],
    "three_parts": ["needs a batch of two", "this batch is 3 parts", "loss(model, batch)"],
    "several_models": ["a list of models", "ModuleList"],
    "two_devices": ["device", "support_fit_forms.py:", ".cuda()"],
    "runs_dry": ["came to an end before two steps"],
}
OTHERS = (
    "in_order", "three", "averaged", "logged", "distributions", "sparse", "sparse_adam", "packed", "packed_known",
    "spoken", "scripted",
)  # fmt: skip
NAMES = (*OTHERS, *ALIKE, *ERRORS)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("forms")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "support_fit_forms.py"), str(folder), *NAMES],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in NAMES}


def sizes(trace: dict[str, Any]) -> list[int]:
    """What is asked for from the second step on: the first may load a batch earlier or later."""
    assert "error" not in trace, trace["error"]
    begin = trace["events"].index(["step", 2])
    return [trace["storages"]["bytes"][event[1]] for event in trace["events"][begin:] if event[0] == "alloc"]


def inputs_apart(trace: dict[str, Any]) -> list[int]:
    """The same without the batch, which makers load for each step."""
    begin = trace["events"].index(["step", 2])
    storages = trace["storages"]
    numbers = [event[1] for event in trace["events"][begin:] if event[0] == "alloc"]
    return [storages["bytes"][number] for number in numbers if storages["class"][number] != "input"]


@pytest.mark.parametrize("name", ALIKE)
def test_forms_of_a_program_are_one_program(traces: dict[str, dict[str, Any]], name: str) -> None:
    assert "error" not in traces[name], traces[name].get("error")
    assert inputs_apart(traces[name]) == inputs_apart(traces["in_order"])
    assert traces[name]["batch"]["size"] == 32
    assert traces[name]["unknown"] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_process_is_as_it_was(traces: dict[str, dict[str, Any]], name: str) -> None:
    assert traces[name]["state_kept"]


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_used_is_told_with_a_way_out(traces: dict[str, dict[str, Any]], name: str) -> None:
    for words in ERRORS[name]:
        assert words in traces[name]["error"]


def test_a_model_with_its_own_loss_needs_none(traces: dict[str, dict[str, Any]]) -> None:
    assert inputs_apart(traces["three"]) == inputs_apart(traces["in_order"])


def test_copies_take_as_much_again(traces: dict[str, dict[str, Any]]) -> None:
    trace = traces["averaged"]
    assert "error" not in trace, trace["error"]
    weights = [one for one in trace["storages"]["bytes"] if one == 64 * 10 * 4]
    # The layer, its copy, two moments, and a gradient and more for each of two steps.
    assert len(weights) >= 6


def test_numbers_that_are_read_are_named(traces: dict[str, dict[str, Any]]) -> None:
    for name in ("logged", "distributions"):
        assert "error" not in traces[name], traces[name]["error"]
        assert traces[name]["unknown"], name
        assert all("support_fit_forms.py" in one["where"] for one in traces[name]["unknown"]), traces[name]["unknown"]


def test_gradients_of_few_rows_are_few_rows(traces: dict[str, dict[str, Any]]) -> None:
    asked = sizes(traces["sparse"])
    # 32 samples of 20 words: that many rows of 64 numbers, and never the whole table of 1000.
    assert 32 * 20 * 64 * 4 in asked
    assert 1000 * 64 * 4 not in asked


def test_rows_of_a_gradient_are_what_sparse_adam_works_with(traces: dict[str, dict[str, Any]]) -> None:
    rows = 32 * 20 * 64 * 4
    # Beside the gradient: its sum over equal rows, the rows of both moments, what each changes by, and the step.
    plain, adam = (sizes(traces[name]).count(rows) for name in ("sparse", "sparse_adam"))
    assert adam - plain == 6, (plain, adam)


def test_packed_sequences_take_what_their_lengths_say(traces: dict[str, dict[str, Any]]) -> None:
    known, unknown = sizes(traces["packed_known"]), sizes(traces["packed"])
    # 20 + 10 + 5 + 5 times of 64 numbers; without known lengths as if all were the longest.
    assert 40 * 64 * 4 in known
    assert 4 * 20 * 64 * 4 in unknown and 40 * 64 * 4 not in unknown
    assert traces["packed_known"]["unknown"] == []
    assert [one["bound_bytes"] for one in traces["packed"]["unknown"]] == [4 * 20 * 64 * 4]


def test_all_paths_of_a_transcript_are_kept(traces: dict[str, dict[str, Any]]) -> None:
    # 32 samples at 50 times, 7 labels with a blank around each.
    paths = 32 * 50 * (2 * 7 + 1) * 4
    assert sizes(traces["spoken"]).count(paths) == 2, "forward, and once more in backward"


def test_scripted_code_is_run_as_it_is(traces: dict[str, dict[str, Any]]) -> None:
    assert 32 * 10 * 4 in sizes(traces["scripted"])
