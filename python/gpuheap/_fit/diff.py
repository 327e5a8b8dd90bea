"""What changes in a program's file, as a unified diff."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuheap._fit.start import counted_bytes, start_line

__all__ = ["diff", "snippet"]

# Levers that need nothing of the training loop: the model and the optimizer are all they change.
_IN_PLACE = frozenset(
    ("allocator", "checkpoint", "selective_checkpoint", "offload_activations", "optimizer", "optimizer_state",
     "offload_optimizer", "loss", "parameters", "compile", "quantize", "prune", "sparse24", "spill")
)  # fmt: skip


def diff(
    found: Mapping[str, Any],
    levers: Sequence[Mapping[str, Any]],
    program: str | os.PathLike[str] | None = None,
    plan: str = "plan.json",
) -> str:
    """The changed lines of the program that makes and trains the model; a snippet where the places are not found."""
    if not levers:
        return ""
    make = (found.get("source") or {}).get("make")
    path = Path(program) if program is not None else Path(str(make).rpartition(":")[0]) if make else None
    try:
        before = path.read_text(encoding="utf-8") if path is not None else None
        after = None if before is None else changed(before, levers, plan)
    except (OSError, SyntaxError, UnicodeDecodeError):
        before = after = None
    if before is None or after is None or path is None:
        return snippet(levers, plan, "train.py" if path is None else str(path), counted_bytes(found))
    # From the current directory where the file is below it, as `git apply` and `patch` want it.
    name = os.path.relpath(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path).lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def snippet(
    levers: Sequence[Mapping[str, Any]], plan: str = "plan.json", program: str = "train.py", budget_bytes: int = 0
) -> str:
    """The lines to write, for programs that are put together in a way of their own."""
    lines = [
        f"# start it as: {start_line(levers, program, budget_bytes)}",
        "import gpuheap",
        "",
        f'applied = gpuheap.Plan.load("{plan}").apply(model, optimizer, loss=loss)',
        "model, optimizer = applied",
        "for batch in loader:",
        "    value = applied.step(batch)",
    ]
    return "\n".join(lines) + "\n"


def changed(source: str, levers: Sequence[Mapping[str, Any]], plan: str) -> str | None:
    """The source with the plan applied after the optimizer is made, and its loop led through it; None if not found."""
    tree = ast.parse(source)
    made = _optimizer(tree)
    if made is None:
        return None
    statement, optimizer, model = made
    edits: dict[int, tuple[int, list[str]]] = {}
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    end = statement.end_lineno or statement.lineno
    edits[end] = (
        end,
        [
            lines[end - 1] if lines[end - 1].endswith("\n") else f"{lines[end - 1]}\n",
            f'{indent}applied = gpuheap.Plan.load("{plan}").apply({model}, {optimizer})\n',
            f"{indent}{model}, {optimizer} = applied\n",
        ],
    )
    if not {str(lever.get("lever")) for lever in levers} <= _IN_PLACE:
        loop = _loop(tree, optimizer)
        if loop is None or any(lever.get("lever") in ("accumulate", "shard", "inference_mode") for lever in levers):
            # Batches are cut there, which no line can be found for.
            return None
        _lead(loop, lines, optimizer, edits)
    _import(tree, lines, edits)
    for begin in sorted(edits, reverse=True):
        stop, new = edits[begin]
        lines[begin - 1 : stop] = new
    return "".join(lines)


def _optimizer(tree: ast.Module) -> tuple[ast.Assign, str, str] | None:
    """The last `optimizer = Class(model.parameters(), ...)`, with both names."""
    found: tuple[ast.Assign, str, str] | None = None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
            continue
        call = node.value
        if not (isinstance(call, ast.Call) and call.args):
            continue
        first = call.args[0]
        if (
            isinstance(first, ast.Call)
            and isinstance(first.func, ast.Attribute)
            and first.func.attr == "parameters"
            and isinstance(first.func.value, ast.Name)
        ):
            found = (node, node.targets[0].id, first.func.value.id)
    return found


def _loop(tree: ast.Module, optimizer: str) -> list[ast.stmt] | None:
    """The statements among which are `loss.backward()` and `optimizer.step()`."""
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            calls = [_called(one) for one in body] if isinstance(body, list) else []
            if (optimizer, "step") in calls and any(call is not None and call[1] == "backward" for call in calls):
                return body
    return None


def _called(statement: Any) -> tuple[str, str] | None:
    """The names of a statement that is `name.method(...)`."""
    if (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and isinstance(statement.value.func.value, ast.Name)
    ):
        return statement.value.func.value.id, statement.value.func.attr
    return None


def _lead(body: list[ast.stmt], lines: list[str], optimizer: str, edits: dict[int, tuple[int, list[str]]]) -> None:
    """The loss within the plan's context, then its backward pass and its step."""
    backward = next(one for one in body if (_called(one) or ("", ""))[1] == "backward")
    name = (_called(backward) or ("", ""))[0]
    for statement in body:
        begin, end = statement.lineno, statement.end_lineno or statement.lineno
        indent = " " * statement.col_offset
        called = _called(statement)
        if called == (name, "backward"):
            edits[begin] = (end, [f"{indent}applied.backward({name})\n"])
        elif called == (optimizer, "step"):
            edits[begin] = (end, [f"{indent}applied.optimizer_step()\n"])
    before = [one for one in body if one.lineno < backward.lineno and _called(one) != (optimizer, "zero_grad")]
    # From the first statement that the loss is made of on: the model's call, as a rule, and the loss.
    first = next(
        (at for at, one in enumerate(before) if any(isinstance(part, ast.Call) for part in ast.walk(one))), None
    )
    if first is None:
        return
    within = before[first:]
    begin, end = within[0].lineno, within[-1].end_lineno or within[-1].lineno
    indent = " " * within[0].col_offset
    moved = [f"    {line}" if line.strip() else line for line in lines[begin - 1 : end]]
    edits[begin] = (end, [f"{indent}with applied.forward():\n", *moved])


def _import(tree: ast.Module, lines: list[str], edits: dict[int, tuple[int, list[str]]]) -> None:
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    if any(isinstance(node, ast.Import) and any(one.name == "gpuheap" for one in node.names) for node in imports):
        return
    at = (imports[-1].end_lineno or imports[-1].lineno) if imports else 0
    if at == 0:
        docstring = ast.get_docstring(tree) is not None
        at = (tree.body[0].end_lineno or 1) if docstring else 0
    if at == 0:
        old = edits.get(1)
        edits[1] = (old[0], ["import gpuheap\n", *old[1]]) if old else (1, ["import gpuheap\n", lines[0]])
    else:
        line = lines[at - 1] if lines[at - 1].endswith("\n") else f"{lines[at - 1]}\n"
        edits[at] = (at, [line, "import gpuheap\n"])
