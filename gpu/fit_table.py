"""The tables of `fit_compare.py`: errors of predictions by tool, by model, by setting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
BUDGET_STEPS = tuple(percent / 100 for percent in range(-15, 16))
"""Budgets tried for each run, around what it really took."""
WORST = 15
PLANNED = "gpuheap, from plain traces"


def quantile(values: list[float], part: float) -> float:
    """By the next rank: no interpolation makes a worst case look better."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def errors(rows: Iterable[Row], tool: str, figure: str) -> list[float]:
    """Signed relative errors of the runs that the tool gave a prediction for."""
    found: list[float] = []
    for row in rows:
        guess = prediction(row, tool, figure)
        if guess is not None:
            found.append(guess / row["real"][f"peak_{figure}"] - 1)
    return found


def prediction(row: Row, tool: str, figure: str) -> float | None:
    if tool == "gpuheap":
        return row["ours"].get(figure)
    if tool == PLANNED:
        return (row.get("planned") or {}).get(figure)
    if tool == "MemTracker":
        # It knows no segments: its one figure stands for both.
        return (row["memtracker"] or {}).get("peak_allocated")
    return row["real"].get("accelerate")


def false_fits(rows: list[Row], tool: str) -> tuple[int, int, int]:
    """Of all runs and budgets: said to fit and did not; said not to fit and did; how many there were.

    A budget is the bytes that PyTorch may reserve, from 15 % below to 15 % above what the run reserved. gpuheap says
    that a run fits if the upper end of its error bar does; the other tools have no bar.
    """
    wrong = refused = total = 0
    for row in rows:
        real = row["real"]["peak_reserved"]
        if tool == "gpuheap" and "high" in row["ours"]:
            guess: float | None = row["ours"]["high"] - row["ours"]["context"]
        else:
            guess = prediction(row, tool, "reserved")
        if guess is None:
            continue
        for step in BUDGET_STEPS:
            budget = real * (1 + step)
            total += 1
            wrong += guess <= budget < real
            refused += guess > budget >= real
    return wrong, refused, total


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def summary(rows: list[Row], title: str) -> list[str]:
    lines = [
        f"### {title}",
        "",
        "| tool | runs | no prediction | allocated: median | 95 % | worst | reserved: median | 95 % | worst "
        "| said to fit, did not | said not to fit, did |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for tool in ("gpuheap", "MemTracker", "accelerate"):
        allocated, reserved = errors(rows, tool, "allocated"), errors(rows, tool, "reserved")
        if not allocated:
            continue
        cells = [tool, str(len(rows)), str(len(rows) - len(allocated))]
        for found in (allocated, reserved):
            sizes = [abs(error) for error in found]
            worst = max(found, key=abs)
            cells += [percent(quantile(sizes, 0.5)), percent(quantile(sizes, 0.95)), f"{100 * worst:+.1f} %"]
        wrong, refused, total = false_fits(rows, tool)
        cells += [percent(wrong / total), percent(refused / total)] if total else ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def from_plain(rows: list[Row]) -> list[str]:
    """Predictions as the planner makes them: of a setting or a larger batch that was not itself traced."""
    known = [row for row in rows if row.get("planned")]
    lines = [
        "### Predicted from plain traces",
        "",
        "The largest batch from traces at the two smaller ones; settings as levers of the planner on a plain trace.",
        "",
        "| what | runs | no prediction | allocated: median | 95 % | worst | reserved: median | 95 % | worst |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for setting in sorted({row["real"]["setting"] for row in known}):
        group = [row for row in known if row["real"]["setting"] == setting]
        allocated, reserved = errors(group, PLANNED, "allocated"), errors(group, PLANNED, "reserved")
        cells = ["larger batch" if setting == "none" else setting, str(len(group)), str(len(group) - len(allocated))]
        for found in (allocated, reserved):
            sizes = [abs(error) for error in found]
            cells += [percent(quantile(sizes, part)) if found else "" for part in (0.5, 0.95)]
            cells.append(f"{100 * max(found, key=abs):+.1f} %" if found else "")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""] if known else []


def grouped(rows: list[Row], field: str) -> list[str]:
    lines = [
        f"### By {field}",
        "",
        f"| {field} | runs | allocated: median | worst | reserved: median | worst | step time: median "
        "| MemTracker: median | accelerate: median |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted({row["real"][field] for row in rows}):
        group = [row for row in rows if row["real"][field] == name]
        cells = [str(name), str(len(group))]
        for figure in ("allocated", "reserved"):
            found = errors(group, "gpuheap", figure)
            if found:
                cells += [percent(quantile([abs(e) for e in found], 0.5)), f"{100 * max(found, key=abs):+.1f} %"]
            else:
                cells += ["none", ""]
        times = [
            abs(row["ours"]["step_us"] / row["real"]["step_us"] - 1)
            for row in group
            if row["ours"].get("step_us") and row["real"].get("step_us")
        ]
        cells.append(percent(quantile(times, 0.5)) if times else "")
        for tool in ("MemTracker", "accelerate"):
            found = [abs(error) for error in errors(group, tool, "allocated")]
            cells.append(percent(quantile(found, 0.5)) if found else "none")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def worst_runs(rows: list[Row]) -> list[str]:
    lines = [
        "### The largest errors",
        "",
        "| run | allocated, real | error | reserved, real | error | phase of the predicted peak |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    known = [row for row in rows if "allocated" in row["ours"]]

    def size(row: Row) -> float:
        return max(abs(row["ours"][figure] / row["real"][f"peak_{figure}"] - 1) for figure in ("allocated", "reserved"))

    for row in sorted(known, key=size, reverse=True)[:WORST]:
        cells = [row["run"]]
        for figure in ("allocated", "reserved"):
            real = row["real"][f"peak_{figure}"]
            cells += [f"{real / 2**30:.3f} GiB", f"{100 * (row['ours'][figure] / real - 1):+.2f} %"]
        cells.append(str(row["ours"]["phase"]))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def failures(rows: list[Row]) -> list[str]:
    failed = [row for row in rows if "error" in row["ours"]]
    lines = ["### Not predicted", ""] if failed else []
    lines += [f"- {row['run']}: {row['ours']['error']}" for row in failed]
    return [*lines, ""]


def processes(fresh: list[Row], rows: list[Row]) -> list[str]:
    """Whether a run inside a long-lived process shows what a user's own process shows."""
    lines = [
        "### In a fresh process",
        "",
        "| run | allocated: fresh | in process | reserved: fresh | in process |",
        "| --- | --- | --- | --- | --- |",
    ]
    inside = {row["run"]: row["real"] for row in rows}
    for one in fresh:
        key = f"{one['model']}:{one['batch']}:{one['setting']}"
        other = inside.get(key)
        if other is None or other["how"] == one["how"]:
            continue
        cells = [key]
        for figure in ("peak_allocated", "peak_reserved"):
            cells += [f"{one[figure]:,}", "the same" if other[figure] == one[figure] else f"{other[figure]:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""] if len(lines) > 4 else []


def report(rows: list[Row], about: Row, fresh: list[Row]) -> str:
    validation = [row for row in rows if not row["real"]["calibration"]]
    calibration = [row for row in rows if row["real"]["calibration"]]
    unseen = [row for row in validation if not row["real"].get("examined")]
    examined = [row for row in validation if row["real"].get("examined")]
    known = ", ".join(str(about[name]) for name in ("device", "torch", "cuda", "cudnn") if about.get(name))
    models = len({row["real"]["model"] for row in validation})
    lines = [f"Measured on {known}. {len(validation)} runs of {models} models that no rule was learnt from.", ""]
    for part, title in (
        (validation, "Models that nothing was learnt from"),
        (unseen, "Of these: models that were not examined"),
        (examined, "Of these: models examined while errors were sought"),
        (calibration, "Models that rules were learnt from"),
    ):
        if part and (part is validation or part is calibration or examined):
            lines += summary(part, title)
    lines += from_plain(validation or rows)
    lines += grouped(validation or rows, "model") + grouped(validation or rows, "setting")
    lines += worst_runs(rows) + failures(rows) + processes(fresh, rows)
    return "\n".join(lines)
