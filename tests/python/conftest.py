"""What the tests share."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

# Who is started in the background by a shell ignores Ctrl-C, and so do its children: the tests send it to themselves
# and to programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if importlib.util.find_spec("torch") is None:
        reason = "PyTorch is not installed"
    else:
        import torch

        if torch.cuda.is_available():
            return
        reason = "no CUDA device"
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def examples() -> Path:
    """Recordings of real programs."""
    return Path(__file__).parents[2] / "examples"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A file that was skipped as a whole, because it needs what is not installed, is no failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.OK
