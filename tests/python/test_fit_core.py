"""Plans from traces, without a model: the extension's side of ``gpuheap.fit``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpuheap import Error, _core

TRACES = Path(__file__).parents[2] / "crates" / "gpuheap" / "tests" / "traces"


def trace(batch: int) -> bytes:
    return (TRACES / f"transformer-{batch}.json.gz").read_bytes()


def plan(**options: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(_core.fit_plan([trace(8), trace(4)], json.dumps(options)))
    return result


def test_a_plan_keeps_to_its_budget() -> None:
    found = plan(budget_bytes=1300 << 20)
    assert found["schema"] == "gpuheap.fit/1"
    assert found["verdict"] == "fits"
    assert found["peak"]["high"] <= 1300 << 20
    assert found["plan"]
    assert found["source"]["make"] == "train.py:make"
    assert found["batch"] == {"size": 8}


def test_one_trace_will_do_as_text_or_bytes() -> None:
    text = gzip.decompress(trace(8)).decode()
    for given in (text, text.encode(), trace(8)):
        assert json.loads(_core.fit_plan(given, "{}"))["verdict"] == "fits"


@pytest.mark.parametrize(
    ("traces", "options", "message"),
    [
        (b"", "{}", "the file is empty"),
        (b"{", "{}", "line 1"),
        (None, "[", "The options are not valid"),
        (None, '{"budget": 1}', "unknown field `budget`"),
        (None, '{"device": "Voodoo"}', "No device is called `Voodoo`"),
        (None, '{"batch": 16}', "says nothing about batch 16"),
        (None, '{"set": [{"lever": "checkpoint", "modules": ["x"]}]}', "there is no block called `x`"),
    ],
)
def test_what_cannot_be_used_is_told(traces: bytes | None, options: str, message: str) -> None:
    with pytest.raises(Error) as raised:
        _core.fit_plan(trace(8) if traces is None else traces, options)
    assert message in str(raised.value)
