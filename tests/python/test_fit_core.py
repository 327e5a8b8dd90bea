"""Plans from traces, without a model: the extension's side of ``gpuheap.fit``."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpuheap import Error, Plan, _core

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


def page_of(path: Path) -> dict[str, Any]:
    """What a page draws."""
    text = path.read_text(encoding="utf-8").partition('id="gpuheap-data">')[2].partition("</script>")[0]
    page: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text)))
    return page


def test_a_page_of_a_plan(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("model = Net()\noptimizer = AdamW(model.parameters())\n", encoding="utf-8")
    found = plan(budget_bytes=1300 << 20, without=["accumulate", "loss"], timelines=True, front=True)
    found["source"]["make"] = f"{program}:make"
    whole = Plan(found)
    whole.html(tmp_path / "plan.html", plan="kept.json")
    page = page_of(tmp_path / "plan.html")
    assert page["schema"] == "gpuheap.fit.page/1"
    timelines = page["fit"].pop("timelines")
    told = whole.as_dict()
    assert "timelines" not in told and page["fit"].keys() == told.keys()
    for name in ("verdict", "budget_bytes", "source", "phases", "optimality", "notes"):
        assert page["fit"][name] == told[name]
    for name, peak in (("baseline", found["baseline"]), ("planned", found["peak"])):
        assert max(map(sum, zip(*timelines[name]["bytes"], strict=True))) == peak["allocated_bytes"]
    assert '+applied = gpuheap.Plan.load("kept.json").apply(model, optimizer)' in page["changes"]["diff"]
    assert page["changes"]["start"].endswith(str(program))
    # A plan that was saved has all but memory through time.
    whole.save(tmp_path / "plan.json")
    Plan.load(tmp_path / "plan.json").html(tmp_path / "again.html")
    assert "timelines" not in page_of(tmp_path / "again.html")["fit"]
    with pytest.raises(Error, match="no folder"):
        whole.html(tmp_path / "no folder" / "plan.html")
    with pytest.raises(Error, match="missing field"):
        Plan({"verdict": "fits", "plan": []}).html(tmp_path / "none.html")


def test_a_plan_in_a_notebook_escapes_names() -> None:
    found = plan(budget_bytes=1300 << 20)
    found["peak"]["holders"][0]["module"] = "<b>"
    found["notes"] = ["<script>"]
    text = Plan(found)._repr_html_()
    assert "FITS in 1.27 GiB" in text and "&lt;b&gt;" in text and "<b>" not in text and "<script>" not in text
    assert text.count("<table>") == 2
