"""`gpuheap.doctor` on small training programs: each leak with its holder and its line, and no healthy one.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import support_doctor as programs
from gpuheap.doctor import doctor


@pytest.fixture(scope="module")
def torch() -> Any:
    return programs.quiet_torch()


def marked_line(program: Callable[..., Any]) -> int:
    """The line of the program with `# here`."""
    lines, first = inspect.getsourcelines(program)
    return first + next(at for at, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize("program", programs.LEAKS, ids=lambda program: str(program.__name__))
def test_a_leak_with_its_holder_and_line(torch: Any, program: Callable[..., Any]) -> None:
    pattern, holder = programs.LEAKS[program]
    model, step = program(torch)
    # What happens in some steps only needs more of them to be told.
    rare = program in (programs.replay_unbounded, programs.every_tenth, programs.best_models)
    report = doctor(model, step, max_steps=None if rare else 16, quiet=True)
    leaks = [finding for finding in report.findings if finding.kind == "leak"]
    assert [finding.pattern for finding in leaks] == [pattern], str(report)
    leak = leaks[0]
    assert any(holder in path for path in leak.holders), str(report)
    assert leak.file is not None and Path(leak.file).name == "support_doctor.py", str(report)
    assert leak.line == marked_line(program), str(report)
    assert leak.remedy and leak.evidence
    others = {finding.kind for finding in report.findings} - {"leak"}
    assert not others - ({"evaluation_graph"} if program is programs.losses_kept else set()), str(report)


@pytest.mark.parametrize("program", programs.HEALTHY, ids=lambda program: str(program.__name__))
def test_a_healthy_program_has_no_finding(torch: Any, program: Callable[..., Any]) -> None:
    model, step = program(torch)
    report = doctor(model, step, quiet=True)
    assert report.findings == [], str(report)
    assert report.ok
