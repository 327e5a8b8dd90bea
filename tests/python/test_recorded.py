"""Programs that are recorded from outside, with a PyTorch that is none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gpuheap
from gpuheap import recorded
from support_torch import FAKE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Nothing to run"),
        (["-o"], "needs a value"),
        (["--max-entries", "many", __file__], "needs a number, not `many`"),
        (["--fast", __file__], "Unexpected option `--fast`"),
        (["no-such.py"], "no such file"),
        (["-m"], "needs the name of a module"),
    ],
)
def test_wrong_use(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded.run(arguments) == 2
    assert message in capsys.readouterr().err


def test_arguments() -> None:
    parse = recorded._parse
    assert parse(["-o", "a", "--stacks=all", __file__, "-o", "b"]) == (
        {"path": "a", "stacks": "all"},
        False,
        [__file__, "-o", "b"],
    )
    assert parse(["--max-entries", "5", "-m", "json.tool", "-h"]) == ({"max_entries": 5}, True, ["json.tool", "-h"])
    assert parse(["--every-stack", "--activations", __file__])[0] == {"stack_share": 1.0, "activations": True}
    assert parse(["-h"]) == (None, False, [])


class Program:
    """A script beside a PyTorch that is none."""

    def __init__(self, folder: Path, example: Path) -> None:
        self.folder = folder
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text(FAKE.format(example=str(example)))

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "train.py").write_text(textwrap.dedent(script))
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def program(tmp_path: Path, examples: Path) -> Program:
    return Program(tmp_path, examples / "loss_accumulate.pickle.gz")


def test_a_program_is_recorded_without_a_change(program: Program) -> None:
    script = """
        import sys
        print(__name__, sys.argv, "torch" in sys.modules)
        import torch
        print(torch.__loader__.__class__.__name__, len(torch.cuda.memory.started))
        sys.exit(3)
    """
    done = program.run(script, "-m", "gpuheap", "record", "-o", "run.gpuheap", "train.py", "--rate", "1")
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["__main__ ['train.py', '--rate', '1'] False", "SourceFileLoader 1"]
    assert gpuheap.explain(program.folder / "run.gpuheap")["verdict"]["kind"] == "leak"


def test_a_program_without_pytorch_is_told_that_there_is_no_recording(program: Program) -> None:
    done = program.run("print('done')", "-m", "gpuheap", "record", "-o", "run.gpuheap", "train.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "gpuheap: nothing was recorded: the program did not import PyTorch\n"
    assert not (program.folder / "run.gpuheap").exists()


def test_the_environment_variable_records(program: Program) -> None:
    script = """
        import sys
        from gpuheap import recorded
        recorded.at_start()  # what the wheel's .pth file does when Python starts
        import torch
    """
    done = program.run(script, "train.py", GPUHEAP_RECORD="run.gpuheap")
    assert (done.returncode, done.stderr) == (0, "")
    assert gpuheap.explain(program.folder / "run.gpuheap")["verdict"]["kind"] == "leak"
    (program.folder / "run.gpuheap").unlink()
    assert program.run(script, "train.py").returncode == 0
    assert not (program.folder / "run.gpuheap").exists()


def test_the_wheel_starts_recordings(program: Program) -> None:
    site = Path(gpuheap.__file__).parents[1]
    if not (site / "gpuheap-record.pth").exists():
        assert site.name != "site-packages", "the wheel has the file"
        pytest.skip("not installed from a wheel")
    done = program.run("import torch", "train.py", GPUHEAP_RECORD="run.gpuheap")
    assert (done.returncode, done.stderr) == (0, "")
    assert (program.folder / "run.gpuheap").exists()
