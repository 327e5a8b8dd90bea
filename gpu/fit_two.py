"""Plans for two GPUs: a model of 1.6 times the budget of a card, under FSDP2, tensor parallelism and a pipeline.

    PYTHONPATH=python python gpu/fit_two.py plan PLANS.json             without a GPU: the plans of the command
    PYTHONPATH=python python gpu/fit_two.py run PLANS.json OUT.jsonl    on two GPUs

`plan` asks `gpuheap fit --gpus 2 --budget X` for the fastest plan, and for the fastest of each form. `run` runs the
model on one GPU and each plan on two, every run in processes of its own with its own time limit, and compares memory,
the time of a step, and losses.

The command traces the model in all forms for each plan. With `--traces FOLDER` that is done once, what is in the folder
is taken as it is, and a plan with more levers than its form is traced once more as it will run, as the command does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODEL, BATCH, GPUS = "llama_1b", 8, 2
FORMS = ("fsdp2", "tensor", "pipeline")
PART = 1.6
DEVICE = "h200"
GIB = 1 << 30
_BESIDE = ("saves_bytes", "costs_us", "what", "why", "code")


def make_of(model: str, batch: int) -> str:
    """Where the program is, for the command."""
    return f"{Path(__file__).parent / 'zoo.py'}:{model}__b{batch}"


def plan(path: Path, ask: Ask) -> None:
    """Make the plans; the budget is what one GPU would need, by the same command, through 1.6."""
    alone = ask.fit(["one"], "--without", "all", "--budget", "139GiB")
    need = int(alone["peak"]["device_bytes"])
    budget = int(need / PART)
    beside = {"model": ask.model, "batch": ask.batch, "budget_bytes": budget}
    rows = [{"name": "one GPU", **beside, "fit": alone}]
    print(f"{ask.model}, batch {ask.batch}: needs {need / GIB:.2f} GiB; the budget is {budget / GIB:.2f} GiB")
    for name in ("fastest", *FORMS):
        begun = time.perf_counter()
        lever = ["--set", json.dumps(_shard(name))] if name != "fastest" else []
        forms = [name] if lever else list(FORMS)
        try:
            fit = ask.fit(["one", *forms], "--gpus", str(GPUS), "--budget", str(budget), *lever)
            fit = ask.confirmed(fit, budget)
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        seconds = time.perf_counter() - begun
        rows.append({"name": name, **beside, "fit": fit})
        levers = "; ".join(str(lever.get("what")) for lever in fit["plan"])
        device, step = fit["peak"]["device_bytes"] / GIB, fit["step_us"] / 1e3
        print(f"{name}: {fit['verdict']}, {device:.2f} GiB, {step:.0f} ms: {levers} ({seconds:.0f} s)", flush=True)
        path.write_text(json.dumps(rows), encoding="utf-8")


def _shard(form: str) -> dict[str, Any]:
    return {"lever": "shard", "form": form, "gpus": GPUS}


class Ask:
    """The command, about one model."""

    def __init__(self, command: str, model: str, batch: int, traces: Path | None) -> None:
        """With a folder of ``traces`` the model is traced once for all questions."""
        self.command, self.model, self.batch, self.traces = command.split(), model, batch, traces

    def fit(self, forms: list[str], *more: str, files: list[Path] | None = None) -> dict[str, Any]:
        """What the command says, with traces of these forms if there is a folder for them."""
        line = [*self.command, "fit", "--device", DEVICE, "--json", "--python", sys.executable]
        if self.traces is None:
            line.append(make_of(self.model, self.batch))
        else:
            found = [self._trace(form, [] if form == "one" else [_shard(form)]) for form in forms]
            line += [part for file in [*found, *(files or [])] for part in ("--trace", str(file))]
        done = subprocess.run([*line, *more], capture_output=True, text=True, check=False)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise RuntimeError(done.stderr.strip()) from None
        return {key: value for key, value in answer.items() if key not in ("front", "unknown")}

    def confirmed(self, fit: dict[str, Any], budget: int) -> dict[str, Any]:
        """The plan with the peak of a trace as it will run, where the command has not seen to that itself."""
        levers = [lever for lever in _levers({"fit": fit}) if lever["lever"] not in ("allocator", "spill")]
        shard = next((lever for lever in levers if lever["lever"] == "shard"), None)
        if self.traces is None or shard is None or len(levers) == 1:
            return fit
        name = "-".join([shard["form"], *(f"{lever['lever']}{len(json.dumps(lever))}" for lever in levers[1:])])
        conf = next((lever["conf"] for lever in fit["plan"] if lever["lever"] == "allocator"), "")
        traced = self.fit(
            ["one"], "--gpus", str(GPUS), "--budget", str(budget), "--conf", conf, "--without", "all",
            "--set", json.dumps(shard), files=[self._trace(name, levers)],
        )  # fmt: skip
        print(f"  {shard['form']}: {fit['peak']['device_bytes']:,} bytes by rules, "
              f"{traced['peak']['device_bytes']:,} by a trace with the plan applied")  # fmt: skip
        return {**fit, "peak": {**traced["peak"], "step_us": fit["step_us"]}, "verdict": traced["verdict"]}

    def _trace(self, name: str, levers: list[dict[str, Any]]) -> Path:
        """The file of a trace, made if it is not there."""
        assert self.traces is not None
        self.traces.mkdir(parents=True, exist_ok=True)
        path, applied = self.traces / f"{name}.json", self.traces / f"{name}.levers"
        if not path.exists():
            applied.write_text(json.dumps(levers), encoding="utf-8")
            line = [sys.executable, "-m", "gpuheap._fit", "trace", make_of(self.model, self.batch)]
            done = subprocess.run(
                [*line, "--apply", str(applied), "--out", str(path)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr.strip()[-2000:])
        return path


def run(plans: Path, out: Path, seconds: float, chosen: list[str]) -> None:
    """Every plan, the model on one GPU first; what is left of the time is shared by those that are left."""
    from gpuheap._fit.verify import run_plan
    from gpuheap.errors import Error

    rows = json.loads(plans.read_text(encoding="utf-8"))
    forms = [_form(row) for row in rows]
    # The fastest is one of the others; if it has other levers it is run too, as the last.
    rows = [row for at, row in enumerate(rows) if row["name"] != "fastest" or _levers(row) not in _all(rows, forms, at)]
    rows.sort(key=lambda row: row["name"] == "fastest")
    rows = [row for row in rows if not chosen or row["name"] in chosen]
    until = time.monotonic() + seconds
    expected: list[float] = []
    for at, row in enumerate(rows):
        left = until - time.monotonic()
        limit = left / (len(rows) - at) + min(15.0, left / 4)
        begun = time.perf_counter()
        try:
            wanted = {"plan": _levers(row)}
            make = make_of(row["model"], row["batch"])
            real = run_plan(wanted, make, steps=3, seconds=min(limit, left), build_there=True)
        except Error as error:
            real = {"error": str(error), "hint": error.hint}
        peak = {
            name: row["fit"]["peak"][name] for name in ("allocated_bytes", "reserved_bytes", "device_bytes", "high")
        }
        written = {
            "model": row["model"],
            "batch": row["batch"],
            "name": row["name"],
            "budget_bytes": row["budget_bytes"],
            "levers": _levers(row),
            "predicted": {**peak, "step_us": row["fit"]["step_us"], "verdict": row["fit"]["verdict"]},
            "real": real,
            "seconds": time.perf_counter() - begun,
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(written) + "\n")
        losses = _losses(real, _form(row)) if "losses" in real else []
        expected = expected or losses
        _show(written, losses, expected)


def _all(rows: list[dict[str, Any]], forms: list[str | None], at: int) -> list[Any]:
    return [_levers(row) for other, row in enumerate(rows) if other != at and forms[other] == forms[at]]


def _levers(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in lever.items() if key not in _BESIDE} for lever in row["fit"]["plan"]]


def _form(row: dict[str, Any]) -> str | None:
    return next((lever["form"] for lever in row["fit"]["plan"] if lever["lever"] == "shard"), None)


def _losses(real: dict[str, Any], form: str | None) -> list[float]:
    """The losses of the whole batch: those of the parts have the weights that make their mean the whole."""
    if form in ("data", "fsdp2") and real.get("ranks"):
        return [sum(parts) / len(parts) for parts in zip(*(rank["losses"] for rank in real["ranks"]), strict=True)]
    return list(real["losses"])


def _show(row: dict[str, Any], losses: list[float], expected: list[float]) -> None:
    real, predicted, name = row["real"], row["predicted"], row["name"]
    if "error" in real or real.get("out_of_memory"):
        print(f"{name:<9} {real.get('error') or real['out_of_memory']} ({row['seconds']:.0f} s)", flush=True)
        return
    text = f"{name:<9}"
    for figure in ("allocated", "reserved", "device"):
        one, other = predicted[f"{figure}_bytes"], real[f"{figure}_bytes"]
        text += f" {figure} {other / GIB:6.2f} GiB ({one / GIB:6.2f}, {one / other - 1:+.1%})"
    if name != "one GPU":
        text += "  within" if real["device_bytes"] <= row["budget_bytes"] else "  OVER"
    text += f"  step {real['step_us'] / 1e3:.0f} ms ({predicted['step_us'] / 1e3:.0f}, "
    text += f"{predicted['step_us'] / real['step_us'] - 1:+.1%})" if real["step_us"] else "not timed)"
    off = max(
        (abs(one - other) / max(abs(other), 1e-12) for one, other in zip(losses, expected, strict=False)), default=0.0
    )
    shown = " ".join(f"{loss:.5f}" for loss in losses)
    print(f"{text}  losses {shown}, off by {off:.1e} ({row['seconds']:.0f} s)", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("plan")
    made.add_argument("plans", type=Path)
    made.add_argument("--command", dest="line", default=f"{sys.executable} -m gpuheap")
    made.add_argument("--model", default=MODEL)
    made.add_argument("--batch", type=int, default=BATCH)
    made.add_argument("--traces", type=Path, metavar="FOLDER")
    ran = commands.add_parser("run")
    ran.add_argument("plans", type=Path)
    ran.add_argument("out", type=Path)
    ran.add_argument("--seconds", type=float, default=150.0, help="for all runs together")
    ran.add_argument("--only", action="append", default=[], metavar="NAME", help="of the plans in the file")
    options = parser.parse_args()
    if options.command == "plan":
        plan(options.plans, Ask(options.line, options.model, options.batch, options.traces))
    else:
        run(options.plans, options.out, options.seconds, options.only)


if __name__ == "__main__":
    main()
