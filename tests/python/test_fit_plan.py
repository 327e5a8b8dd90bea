"""Plans in Python: what they say, the lines that change, how programs are started, and what is said of mistakes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuheap
from gpuheap._fit.verify import command_of, text_of

GIB = 1 << 30
HAS_TORCH = importlib.util.find_spec("torch") is not None

PEAK = {
    "allocated_bytes": 10 * GIB,
    "reserved_bytes": 11 * GIB,
    "device_bytes": 11 * GIB + (1 << 29),
    "low": 11 * GIB,
    "high": 12 * GIB,
    "phase": "backward",
    "step": 2,
    "module": "layers.3",
    "event": 7,
    "holders": [{"class": "activations", "module": "layers.*", "bytes": 4 * GIB}],
    "step_us": 120_000.0,
}
CHECKPOINT = {
    "lever": "checkpoint",
    "modules": ["layers.0"],
    "saves_bytes": 2 * GIB,
    "costs_us": 900.0,
    "why": "made again",
}


def found(*levers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "schema": "gpuheap.fit/1",
        "verdict": "fits",
        "budget_bytes": 12 * GIB,
        "source": {"make": None},
        "peak": PEAK,
        "baseline": {**PEAK, "device_bytes": 20 * GIB},
        "plan": list(levers),
        "step_us": 120_900.0,
        "smallest_budget_bytes": 5 * GIB,
        "front": [],
        "notes": ["times are from data sheets"],
        **more,
    }


def test_a_plan_says_what_it_is(tmp_path: Path) -> None:
    plan = gpuheap.Plan(found(CHECKPOINT))
    assert plan.fits and plan.verdict == "fits" and plan.budget_bytes == 12 * GIB
    assert plan.levers == [{"lever": "checkpoint", "modules": ["layers.0"]}]
    assert plan.peak["module"] == "layers.3" and plan.baseline["device_bytes"] == 20 * GIB
    assert plan.smallest_budget_bytes == 5 * GIB and plan.step_us == 120_900.0
    text = plan.explain()
    assert text.startswith("FITS in 12.0 GiB with 1 change, 512 MiB to spare")
    for part in (
        "as it is  20.0 GiB",
        "backward of step 2, in `layers.3`",
        "-2.00 GiB",
        "made again",
        "note: times are",
    ):
        assert part in text, text
    assert str(plan) == text and repr(plan) == "Plan(fits; levers: checkpoint)"
    plan.save(tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert gpuheap.Plan.load(tmp_path / "plan.json").as_dict() == plan.as_dict()


def test_what_does_not_fit_says_by_how_much() -> None:
    text = gpuheap.Plan(found(verdict="does_not_fit", budget_bytes=8 * GIB)).explain()
    assert text.startswith("DOES NOT FIT in 8.00 GiB, 4.00 GiB too much")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "this is no plan"),
        ("[1]", "this is no plan"),
        ("{", "it is no JSON"),
        (None, "cannot read"),
        ("[" * 100_000, "is no plan"),
        (json.dumps(found() | {"plan": ["checkpoint"]}), "a lever of `plan`"),
        (json.dumps(found({"modules": []})), "a lever of `plan`"),
        (json.dumps(found({"lever": "shard", "gpus": "two"})), "`gpus` of a lever"),
        (json.dumps(found(schema="gpuheap.fit/9")), "this version reads 'gpuheap.fit/1'"),
        (json.dumps(found(peak=None)), "`peak`"),
        (json.dumps(found(peak={"holders": [{}]})), "a holder of `peak`"),
        (json.dumps(found(peak={"high": "1 GiB"})), "`high` of `peak`"),
        (json.dumps(found(baseline=[])), "`baseline`"),
        (json.dumps(found(source="train.py")), "`source`"),
        (json.dumps(found(notes=3)), "`notes`"),
        (json.dumps(found(budget_bytes="24GiB")), "`budget_bytes`"),
        (json.dumps(found(step_us=float("nan"))), "`step_us`"),
        (json.dumps(found(step_us=None)), "`step_us`"),
        (json.dumps(found({"lever": "checkpoint", "modules": [], "saves_bytes": None})), "`saves_bytes` of a lever"),
        (json.dumps(found(budget_bytes=10**400)), "`budget_bytes`"),
    ],
)
def test_what_is_no_plan_is_told_so(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(gpuheap.Error, match=says) as caught:
        gpuheap.Plan.load(path)
    assert "plan.json" in str(caught.value)


def test_a_plan_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(gpuheap.Error, match="cannot write"):
        gpuheap.Plan(found()).save(tmp_path / "no folder" / "plan.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("levers", "line"),
    [
        ([], "python train.py"),
        ([{"lever": "shard", "form": "fsdp2", "gpus": 4}], "torchrun --standalone --nproc-per-node=4 train.py"),
        (
            [{"lever": "allocator", "conf": "expandable_segments:True"}, {"lever": "spill", "bytes": 4096}],
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            "gpuheap run --budget 12348030976 --spill 4096 -- python train.py",
        ),
    ],
)
def test_the_line_that_starts_a_program(levers: list[dict[str, Any]], line: str) -> None:
    # What is beside the allocator, half a GiB, `gpuheap run` does not count.
    assert gpuheap.Plan(found(*levers)).torchrun() == line


def test_what_spills_is_said_in_place_of_room() -> None:
    plan = gpuheap.Plan(found({"lever": "spill", "bytes": 3 << 20}, verdict="fits_with_spill"))
    first = plan.explain().splitlines()[0]
    assert first.startswith("FITS WITH SPILL") and first.endswith("up to 3.00 MiB of it on the host"), first


PROGRAM = '''"""Trains."""
import torch


def main(loader):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3
    )
    for inputs, target in loader:
        optimizer.zero_grad()
        output = model(inputs)
        loss = torch.nn.functional.mse_loss(output, target)
        loss.backward()
        optimizer.step()
'''


def test_the_changed_lines_of_a_program(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    diff = gpuheap.Plan(found(CHECKPOINT, source={"make": f"{program}:make"})).diff()
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "import gpuheap",
        '    applied = gpuheap.Plan.load("plan.json").apply(model, optimizer)',
        "    model, optimizer = applied",
    ]
    assert not [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]


def test_the_changed_lines_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    diff = gpuheap.Plan(found(CHECKPOINT, source={"make": f"{program}:make"})).diff()
    assert diff.splitlines()[:2] == ["--- a/train.py", "+++ b/train.py"]
    done = subprocess.run(["patch", "-p1"], input=diff, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "gpuheap.Plan.load" in program.read_text()
    monkeypatch.chdir("/usr")
    assert gpuheap.Plan(found(CHECKPOINT)).diff(program).startswith(f"--- a{program}\n")


def test_the_changed_lines_of_a_loop(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    plan = gpuheap.Plan(found({"lever": "autocast", "dtype": "float16"}))
    diff = plan.diff(program)
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added[3:] == [
        "        with applied.forward():",
        "            output = model(inputs)",
        "            loss = torch.nn.functional.mse_loss(output, target)",
        "        applied.backward(loss)",
        "        applied.optimizer_step()",
    ]
    patched = tmp_path / "patched"
    patched.mkdir()
    (patched / "train.py").write_text(PROGRAM)
    done = subprocess.run(["patch", "train.py"], cwd=patched, input=diff, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    compile((patched / "train.py").read_text(), "train.py", "exec")
    assert program.read_text() == PROGRAM


def test_where_lines_cannot_be_found_there_is_a_snippet(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    accumulate = {"lever": "accumulate", "factor": 2}
    for text, lever in ((PROGRAM, accumulate), ("pass\n", CHECKPOINT), ("def (", CHECKPOINT)):
        program.write_text(text)
        snippet = gpuheap.Plan(found(lever)).diff(program)
        assert "applied.step(batch)" in snippet and not snippet.startswith("---")
    assert "applied.step(batch)" in gpuheap.Plan(found(CHECKPOINT)).diff(tmp_path / "not there.py")
    assert gpuheap.Plan(found()).diff(program) == ""


def fit_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gpuheap._fit", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot read"),
        ("{", "is no JSON"),
        ("{}", "is no plan"),
        ('{"plan": [], "verdict": "fits"}', "does not say which function"),
        ('{"plan": [3], "verdict": "fits"}', "a lever of `plan` is not what"),
        ("[" * 100_000, "is no plan"),
    ],
)
def test_verify_refuses_what_is_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    from gpuheap._fit.verify import main

    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    assert main([str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and says in said.err


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_verify_without_a_gpu_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found(CHECKPOINT, source={"make": "train.py:make"})))
    done = fit_command("verify", str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert "there is no CUDA device" in done.stderr or "built without CUDA" in done.stderr
    assert "hint: " in done.stderr


def test_a_process_is_started_as_the_levers_need() -> None:
    command, environment = command_of(
        [{"lever": "allocator", "conf": "expandable_segments:True"}, {"lever": "shard", "form": "data", "gpus": 2}]
    )
    assert command == [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    command, _ = command_of([{"lever": "spill", "bytes": 5}])
    assert command[1:8] == ["-m", "gpuheap", "run", "--spill", "5", "--", sys.executable]


def test_predicted_and_real_as_a_table() -> None:
    real = {**PEAK, "allocated_bytes": 8 * GIB, "step_us": 60_450.0, "out_of_memory": None}
    answer = {"predicted": {**PEAK, "step_us": 120_900.0}, "real": real, "fits": True, "budget_bytes": 12 * GIB}
    lines = text_of(answer).splitlines()
    assert lines[1].split() == ["allocated", "10.0", "GiB", "8.00", "GiB", "+25.0%"]
    assert lines[4].split() == ["step", "120.9", "ms", "60.5", "ms", "+100.0%"]
    assert lines[-1] == "It fits into 12.0 GiB."


@pytest.mark.parametrize(
    ("fixed", "best", "runs"),
    # Bytes that nothing spares, and the largest part beside which the rest fits into 12 GiB.
    [(8 * GIB, 0.5, 4), (11 * GIB, 0.125, 4), (13 * GIB, None, 1)],
)
def test_compiled_code_is_driven_until_it_fits(fixed: int, best: float | None, runs: int) -> None:
    from gpuheap._fit.verify import drive, kept_part, with_part

    plan = found({"lever": "compile", "activation_memory_budget": 1.0}, CHECKPOINT)
    tried: list[dict[str, Any]] = []

    def run(part: float) -> dict[str, Any]:
        assert kept_part(with_part(plan, part)["plan"]) == part
        return {"fits": True, "device_bytes": fixed + int(8 * GIB * part)}

    driven = drive(run, 1.0, 12 * GIB, tried)
    assert len(tried) == runs and tried[0]["activation_memory_budget"] == 0.0
    assert (None if driven is None else driven[0]) == best
    assert all(one["fits"] == (one["device_bytes"] <= 12 * GIB) for one in tried)
    # Out of memory is as good as too much.
    assert drive(lambda part: {"fits": part < 0.3, "device_bytes": 0}, 1.0, 12 * GIB, []) == (
        0.25, {"fits": True, "device_bytes": 0},
    )  # fmt: skip
    assert kept_part(plan["plan"]) == 1.0 and kept_part([CHECKPOINT]) is None
    answer = {"predicted": PEAK | {"step_us": 0.0}, "real": {**PEAK, "step_us": 0.0}, "fits": True, "tried": tried}
    assert "activation_memory_budget 0: " in text_of({**answer, "budget_bytes": 12 * GIB})


def test_what_is_learnt_is_kept_with_what_was_known(tmp_path: Path) -> None:
    from gpuheap._fit.verify import _learnt

    path = tmp_path / "fit.json"
    real = {"fits": True, "step_us": 200.0, "allocated_bytes": 10 * GIB, "context_bytes": 600, "device": "Card"}
    plan = {"device": "Card", "step_us": 100.0, "peak": {"allocated_bytes": 9 * GIB}}
    first = _learnt(plan, real, path)
    assert first == {
        "device": "Card", "time_factor": 2.0, "context_bytes": 600, "peak_error": pytest.approx(0.1), "runs": 1,
    }  # fmt: skip
    path.write_text(json.dumps(first))
    # The next plan is predicted with that factor; real times are a fifth above it.
    second = _learnt({**plan, "step_us": 200.0}, {**real, "step_us": 240.0, "allocated_bytes": 9 * GIB}, path)
    assert second is not None and second["runs"] == 2
    assert second["time_factor"] == pytest.approx(2.0 * 1.2**0.5)
    assert second["peak_error"] == pytest.approx(0.1)
    path.write_text("broken")
    assert (_learnt(plan, real, path) or {})["runs"] == 1
    assert _learnt(plan, {**real, "fits": False}, path) is None
    # The bar is one of reserved bytes: what was reserved counts where it is further off.
    reserved = {**real, "reserved_bytes": 5 * GIB}
    assert (_learnt({**plan, "peak": {**plan["peak"], "reserved_bytes": 6 * GIB}}, reserved, None) or {})[
        "peak_error"
    ] == pytest.approx(0.2)
    compiled = [{"lever": "compile", "activation_memory_budget": 0.5}]
    assert _learnt({**plan, "plan": compiled}, real, path) is None


TRAIN = """
import torch

def make():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    batch = (torch.randn(32, 64), torch.randint(64, (32,)))
    return model, torch.optim.AdamW(model.parameters()), torch.nn.CrossEntropyLoss(), batch

def fails():
    return make(1)

def waits():
    import time
    time.sleep(100)
"""


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_a_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    from gpuheap._fit.verify import run_plan

    (tmp_path / "train.py").write_text(TRAIN)
    plan = {"plan": [{"lever": "accumulate", "factor": 2}, CHECKPOINT | {"modules": ["0"]}]}
    real = run_plan(plan, f"{tmp_path / 'train.py'}:make", steps=2)
    assert real["fits"] and real["steps"] == 2 and len(real["losses"]) == 2 and real["step_us"] > 0
    with pytest.raises(gpuheap.Error, match=r"make\(\) takes 0 positional arguments"):
        run_plan(plan, f"{tmp_path / 'train.py'}:fails")
    with pytest.raises(gpuheap.Error, match="has no module `nothing`"):
        run_plan({"plan": [CHECKPOINT | {"modules": ["nothing"]}]}, f"{tmp_path / 'train.py'}:make")
    with pytest.raises(gpuheap.Error, match="had not ended after 4 seconds") as error:
        run_plan({"plan": []}, f"{tmp_path / 'train.py'}:waits", seconds=4)
    # Where it waits: in the program, or on a slow machine still on the way there.
    assert str(error.value.hint).startswith('File "')


def can_plan() -> bool:
    from gpuheap import _core

    return HAS_TORCH and hasattr(_core, "fit_traced")


@pytest.mark.skipif(not can_plan(), reason="needs PyTorch, and a core that plans")
def test_planning_from_a_function(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    plan = gpuheap.fit(f"{tmp_path / 'train.py'}:make", "40GiB", device="H200", without=["all"])
    assert plan.fits and plan.levers == [] and plan.baseline["allocated_bytes"] > 4 * 64 * 64 * 4
    must = [{"lever": "accumulate", "factor": 2}]
    plan = gpuheap.fit(f"{tmp_path / 'train.py'}:make", "40GiB", device="H200", must=must)
    assert {"lever": "accumulate", "factor": 2} in plan.levers
    assert "the peak is of a trace with the plan applied" in plan.notes
    with pytest.raises(gpuheap.Error, match="has no 'nothing'"):
        gpuheap.fit(f"{tmp_path / 'train.py'}:nothing", "1GiB", device="H200")


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="`much` is not an amount of memory"):
        gpuheap.fit("train.py:make", "much")
    with pytest.raises(TypeError, match="expected a function"):
        gpuheap.fit(3, "1GiB")  # type: ignore[arg-type]
    with pytest.raises(gpuheap.Error, match="`without` has `chekpoint`, which is none of accumulate, "):
        gpuheap.fit("train.py:make", "1GiB", without=["chekpoint"])
    with pytest.raises(gpuheap.Error, match="`allow` has `fused`, which is none of accumulate, autocast"):
        gpuheap.fit("train.py:make", "1GiB", allow=["fused"])
    with pytest.raises(gpuheap.Error, match="`must` has the lever `acumulate`"):
        gpuheap.fit("train.py:make", "1GiB", must=[{"lever": "acumulate", "factor": 2}])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget": 0}, "`budget` is 0: nothing fits into no memory"),
        ({"gpus": 0}, "`gpus` is 0, expected 1 to 4096"),
        ({"gpus": "2"}, "`gpus` is '2', expected a whole number"),
        ({"batch": 0}, "`batch` is 0, expected 1 to"),
        ({"batch": 2.5}, "`batch` is 2.5, expected a whole number"),
        ({"must": ["accumulate"]}, "`must` has 'accumulate', expected levers"),
        ({"must": [{}]}, "expected levers"),
    ],
)
def test_options_that_make_no_sense_are_told_before_anything_is_traced(options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        gpuheap.fit("nowhere.py:make", **options)
    assert says in str(caught.value)


def test_a_name_alone_is_one_name() -> None:
    from gpuheap.fit import _names

    assert _names("all") == ["all"] and _names(("spill", "loss")) == ["spill", "loss"]


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_modules_of_a_lever_are_names() -> None:
    import torch

    plan = gpuheap.Plan(found({"lever": "checkpoint", "modules": [3]}))
    with pytest.raises(gpuheap.Error, match="names no modules"):
        plan.apply(torch.nn.Linear(2, 2))


def test_levers_are_known_to_both() -> None:
    pytest.importorskip("torch")
    from gpuheap._fit.apply.order import NAMES
    from gpuheap._fit.planning import _LEVERS

    assert sorted(NAMES) == sorted(_LEVERS)


def test_a_plan_that_may_be_too_large_has_nothing_to_spare() -> None:
    plan = gpuheap.Plan(found(CHECKPOINT, verdict="does_not_fit", peak={**PEAK, "high": 13 * GIB}))
    assert plan.explain().startswith("DOES NOT FIT in 12.0 GiB, 1.00 GiB too much")


def test_the_package_itself_goes_to_other_processes() -> None:
    # As a global of a function of a script, which goes by its value.
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(gpuheap)) is gpuheap
