"""Plans on a GPU: do they keep their budget, how near is the predicted time, and what do the usual ways cost instead?

    PYTHONPATH=python python gpu/fit_plans.py plan PLANS.json            here, without a GPU: the plans
    PYTHONPATH=python python gpu/fit_plans.py run PLANS.json OUT.jsonl   on one GPU (PLANS.json is made if not there)

`run` gives, for each model and budget: the plan; checkpointing of all blocks; what torch's `sac_milp` chooses at that
budget (`gpu/fit_sac.py`, worked out beside the runs; needs pulp). With `--only "bert_large:plan *"` (may be repeated)
only rows of these names are run. Plans for two GPUs: `gpu/fit_two.py`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CASES: dict[str, tuple[int, list[str]]] = {
    "bert_large": (16, ["8GiB", "12GiB", "16GiB"]),
    "gpt2_medium": (8, ["half", "quarter"]),
    "llama_1b": (4, ["half", "quarter"]),
}
"""Model, batch, budgets: of the device, or as a part of what the model needs as it is."""
PARTS = {"half": 0.5, "quarter": 0.25}
DEVICE = "h200"


def plan(path: Path, command: str, models: list[str]) -> None:
    """Make the plans of these models, each by the command as a user types it; those of others stay in the file."""
    plans: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    plans = [row for row in plans if row["model"] not in models]
    for model in models:
        batch, budgets = CASES[model]
        make = f"{Path(__file__).parent / 'zoo.py'}:{model}__b{batch}"
        need = 0
        for budget in ("139GiB", *budgets):
            size = budget if budget not in PARTS else str(int(need * PARTS[budget]))
            begun = time.perf_counter()
            line = [*command.split(), "fit", make, "--budget", size, "--device", DEVICE, "--json"]
            line += ["--python", os.environ.get("FIT_PLANS_PYTHON", sys.executable)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            try:
                found = json.loads(done.stdout)
            except ValueError:
                print(f"{model} within {budget}: {done.stderr.strip()}", file=sys.stderr)
                continue
            if budget == "139GiB":
                need = int(found["baseline"]["device_bytes"])
            found = {key: value for key, value in found.items() if key not in ("front", "unknown")}
            row = {
                "model": model,
                "batch": batch,
                "budget": budget,
                "seconds": time.perf_counter() - begun,
                "fit": found,
            }
            plans.append(row)
            print(f"{model} within {budget}: {found['verdict']}, {len(found['plan'])} levers, {row['seconds']:.1f} s")
    path.write_text(json.dumps(plans), encoding="utf-8")


def run(plans: Path, out: Path, minutes: float, chosen: Path | None, only: list[str]) -> None:
    """One process a model, one after the other; `sac_milp` beside them, unless it has chosen before."""
    if not plans.exists():
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, __file__, "plan", str(plans)], env=environment, check=True)
    until = time.monotonic() + minutes * 60
    out.touch()
    if chosen:
        for model in CASES:
            _worker(plans, out, model, only, until, "--sac", str(chosen))
        table(out)
        return
    beside = out.parent / "sac"
    sac = _choosing(plans, beside)
    try:
        for model in CASES:
            _worker(plans, out, model, only, until)
        while sac.poll() is None and time.monotonic() < until - 60:
            time.sleep(1)
        for model in CASES:
            _worker(plans, out, model, [f"{model}:sac_milp *"], until, "--sac", str(beside))
    finally:
        if sac.poll() is None:
            sac.terminate()
            sac.wait()
    table(out)


def _choosing(plans: Path, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    with (folder / "log.txt").open("w") as log:
        line = [sys.executable, str(Path(__file__).with_name("fit_sac.py")), str(plans), str(folder)]
        return subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT)


def _worker(plans: Path, out: Path, model: str, only: list[str], until: float, *more: str) -> None:
    seconds = until - time.monotonic()
    if seconds <= 0:
        print(f"{model}: no time", flush=True)
        return
    line = [sys.executable, *[f"-W{one}" for one in sys.warnoptions], __file__, "worker", str(plans), str(out), model]
    line += [*more, "--minutes", str(seconds / 60)]
    for pattern in only:
        line += ["--only", pattern]
    subprocess.run(line, check=False)


def worker(plans: Path, out: Path, model: str, beside: Path | None, only: list[str], minutes: float) -> None:
    """All runs of one model in this process."""
    from fit_runs import blocks_of, make_of, write
    from fit_runs import run as run_one

    rows = [row for row in json.loads(plans.read_text(encoding="utf-8")) if row["model"] == model]
    batch = CASES[model][0]
    make = make_of(model, batch)
    until = time.monotonic() + minutes * 60

    def wanted(name: str) -> bool:
        if only and not any(fnmatch.fnmatchcase(f"{model}:{name}", pattern) for pattern in only):
            return False
        if time.monotonic() > until:
            print(f"{model}: no time for {name}", flush=True)
            return False
        return True

    def one(name: str, levers: list[dict[str, Any]], **beside_it: Any) -> None:
        if wanted(name):
            real = run_one(make, levers)
            write({"model": model, "batch": batch, "name": name, "levers": levers, "real": real, **beside_it}, out)

    one("as it is", [])
    everywhere = {"lever": "checkpoint", "modules": blocks_of(model)}
    one("checkpoint all", [everywhere])
    one("checkpoint all, foreach=False", [everywhere, {"lever": "optimizer", "form": "for_loop"}])
    one("checkpoint all, autocast", [everywhere, {"lever": "autocast", "dtype": "bfloat16"}])
    for row in rows:
        fit = row["fit"]
        if fit["plan"]:
            predicted = {**fit["peak"], "step_us": fit["step_us"]}
            predicted.pop("holders", None)
            levers = [_plain(lever) for lever in fit["plan"]]
            budget = fit["budget_bytes"]
            one(f"plan {row['budget']}", levers, predicted=predicted, budget_bytes=budget, verdict=fit["verdict"])
    for row in rows if beside is not None else []:
        name, path = f"sac_milp {row['budget']}", beside / f"{model}-{row['budget']}.json"
        if path.exists() and wanted(name):
            policy = json.loads(path.read_text(encoding="utf-8"))
            budget = row["fit"]["budget_bytes"]
            _of_sac(policy, make, out, model=model, batch=batch, name=name, budget_bytes=budget)


def _of_sac(policy: dict[str, Any], make: Any, out: Path, **row: Any) -> None:
    """What `sac_milp` chose, or why it could not."""
    from fit_runs import run as run_one
    from fit_runs import write
    from fit_sac import applied

    if "error" in policy:
        write({**row, "error": policy["error"]}, out)
        return
    real = run_one(applied(make, policy), [])
    write({**row, "real": real, **{key: value for key, value in policy.items() if key != "modules"}}, out)


def _plain(lever: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in lever.items() if key not in ("saves_bytes", "costs_us", "what", "why", "code")}


def table(out: Path) -> None:
    """The rows as a table, with what was predicted."""
    gib = 1 << 30
    heads = f"{'budget':>7} {'device':>7} {'alloc':>7} {'pred':>7} {'err':>6} {'step':>8} {'pred':>8} {'err':>6}"
    print(f"\n{'model':<12} {'run':<30} {heads}")
    for line in out.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        real, predicted = row.get("real", {}), row.get("predicted", {})
        if not real or "error" in real or real.get("out_of_memory"):
            why = row.get("error") or real.get("error") or "out of memory"
            print(f"{row['model']:<12} {row['name']:<30} {why}")
            continue
        text = f"{row['model']:<12} {row['name']:<30} {row.get('budget_bytes', 0) / gib:7.2f} "
        text += f"{real['device_bytes'] / gib:7.2f} "
        text += f"{real['allocated_bytes'] / gib:7.2f} "
        if predicted:
            off = predicted["allocated_bytes"] / real["allocated_bytes"] - 1
            late = predicted["step_us"] / real["step_us"] - 1
            text += f"{predicted['allocated_bytes'] / gib:7.2f} {off:+6.1%} {real['step_us'] / 1e3:8.1f} "
            text += f"{predicted['step_us'] / 1e3:8.1f} {late:+6.1%}"
            text += "" if real["device_bytes"] <= row["budget_bytes"] else "  OVER THE BUDGET"
        else:
            text += f"{'':7} {'':6} {real['step_us'] / 1e3:8.1f}"
        print(text)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("plan")
    made.add_argument("plans", type=Path)
    made.add_argument("--command", dest="line", default=f"{sys.executable} -m gpuheap")
    made.add_argument("--model", dest="models", action="append", choices=CASES, help="may be repeated; all if left out")
    ran = commands.add_parser("run")
    ran.add_argument("plans", type=Path)
    ran.add_argument("out", type=Path)
    shown = commands.add_parser("table")
    shown.add_argument("out", type=Path)
    work = commands.add_parser("worker")
    work.add_argument("plans", type=Path)
    work.add_argument("out", type=Path)
    work.add_argument("model")
    for taken in (ran, work):
        taken.add_argument("--sac", type=Path, metavar="FOLDER", help="what `gpu/fit_sac.py` chose before")
        taken.add_argument("--only", action="append", default=[], metavar="MODEL:ROW", help="only these; may have *")
        taken.add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args()
    if options.command == "plan":
        plan(options.plans, options.line, options.models or list(CASES))
    elif options.command == "run":
        run(options.plans, options.out, options.minutes, options.sac, options.only)
    elif options.command == "table":
        table(options.out)
    else:
        worker(options.plans, options.out, options.model, options.sac, options.only, options.minutes)


if __name__ == "__main__":
    main()
