"""Plans from traces, without a model: the extension's side of ``gpuheap.fit``."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import threading
from collections.abc import Callable
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


def traced(give: Callable[[list[dict[str, Any]], int | None], bytes], **options: Any) -> dict[str, Any]:
    found = _core.fit_traced(lambda levers, batch: give(json.loads(levers), batch), json.dumps(options))
    result: dict[str, Any] = json.loads(found)
    return result


def test_a_program_is_traced_when_it_is_asked_for() -> None:
    asked: list[tuple[int, int | None]] = []

    def give(levers: list[dict[str, Any]], batch: int | None) -> bytes:
        assert threading.current_thread() is threading.main_thread()
        asked.append((len(levers), batch))
        return trace(4 if levers or batch else 8)

    # Less than the program takes, and more than what a plan is said to take.
    found = traced(give, budget_bytes=1700 << 20)
    # The program, half of its batch, and then plans, which this one says take little.
    assert asked[:2] == [(0, None), (0, 4)] and len(asked) > 2 and all(count for count, _ in asked[2:])
    assert found["verdict"] == "fits" and "the peak is of a trace with the plan applied" in found["notes"]
    asked.clear()
    assert traced(give)["plan"] == [] and asked == [(0, None), (0, 4)]
    asked.clear()
    assert traced(give, without=["all"])["plan"] == [] and asked == [(0, None)]


def test_what_tracing_raises_comes_back() -> None:
    def give(error: BaseException, first: bool, levers: list[dict[str, Any]], batch: int | None) -> bytes:
        if first or batch or levers:
            raise error
        return trace(8)

    with pytest.raises(ZeroDivisionError, match="the program's own"):
        traced(functools.partial(give, ZeroDivisionError("the program's own"), True))
    # Of one trace among others it is said, and the plan is by rules.
    found = traced(functools.partial(give, ZeroDivisionError("not this one"), False), budget_bytes=1300 << 20)
    assert any("could not be traced with the plan" in note and "not this one" in note for note in found["notes"])
    for first in (True, False):
        with pytest.raises(KeyboardInterrupt):
            traced(functools.partial(give, KeyboardInterrupt(), first), budget_bytes=1300 << 20)
    with pytest.raises(Error, match="the file is empty"):
        traced(lambda levers, batch: b"")
    with pytest.raises(TypeError):
        traced(lambda levers, batch: 3)  # type: ignore[arg-type, return-value]


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
    assert "FITS BY RULES in 1.27 GiB" in text and "&lt;b&gt;" in text and "<b>" not in text and "<script>" not in text
    assert text.count("<table>") == 2
