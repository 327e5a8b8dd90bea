"""`python -m gpuheap._fit changes`: what a plan changes in a program, for the page of `gpuheap fit --html`."""

from __future__ import annotations

import argparse
import json
import sys

from gpuheap._fit.plan import Plan
from gpuheap.errors import Error

__all__ = ["changes_of", "main"]


def main(arguments: list[str]) -> int:
    """The command; its exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuheap._fit changes", description="Print the lines that a plan changes, as JSON."
    )
    parser.add_argument("file", metavar="PLAN.json", help="what `gpuheap fit --json` wrote")
    parser.add_argument("--plan", metavar="PATH", default="plan.json", help="where the program will find the plan")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(changes_of(Plan.load(options.file), options.plan)))
    except Error as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2
    return 0


def changes_of(plan: Plan, saved: str = "plan.json") -> dict[str, str]:
    """The changed lines as a unified diff or as a snippet, and the line that starts the program."""
    make = str((plan.as_dict().get("source") or {}).get("make") or "")
    file = make.rpartition(":")[0]
    program = file if file.endswith(".py") else "train.py"
    return {"diff": plan.diff(plan=saved), "start": plan.torchrun(program)}
