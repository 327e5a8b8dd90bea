"""The package as such: names, the command, no framework imported."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import gpuheap
import gpuheap.__main__ as command


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_every_public_name_is_there() -> None:
    for name in gpuheap.__all__:
        assert getattr(gpuheap, name) is not None
        assert name in dir(gpuheap)


@pytest.mark.parametrize("name", sorted(set(gpuheap.__all__) - {"__version__"}))
def test_help_has_a_text(name: str) -> None:
    public = getattr(gpuheap, name)
    assert public.__doc__
    # Built-in functions show no types.
    assert not inspect.isbuiltin(public)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = gpuheap.nothing_like_it  # type: ignore[attr-defined]


def test_nothing_heavy_is_imported() -> None:
    code = """
import sys, gpuheap
assert 'gpuheap._core' not in sys.modules
for name in gpuheap.__all__:
    getattr(gpuheap, name)
frameworks = {'torch', 'jax', 'cupy', 'tensorflow', 'numpy', 'cloudpickle', 'IPython'}
print(sorted(frameworks & set(sys.modules)))
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["isolate", "prefetch", "holders", "release", "scope", "record", "explain"])
def test_a_function_stays_when_its_module_is_imported(name: str) -> None:
    code = f"""
import importlib, types, gpuheap
module = importlib.import_module('gpuheap.{name}')
assert isinstance(module, types.ModuleType)
assert callable(gpuheap.{name}), gpuheap.{name}
"""
    assert python(code).stderr == ""


def test_the_command_runs_as_module_and_as_program() -> None:
    try:
        distribution("gpuheap")
    except PackageNotFoundError:
        pytest.skip("the package is used from its sources: there is no program")
    program = Path(sys.executable).with_name("gpuheap")
    for start in ([sys.executable, "-m", "gpuheap"], [str(program)]):
        done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"gpuheap {gpuheap.__version__}\n")
        done = subprocess.run([*start, "explain", "nothing.pickle"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: Failed to open `nothing.pickle`")


def test_help_names_what_only_the_package_has(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    out = capfd.readouterr().out
    assert "explain" in out
    assert "demo" in out


def test_the_demonstration_runs_without_a_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["demo", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "Leak" in out
    assert (tmp_path / "leak.html").read_text().startswith("<!doctype html>")
    assert gpuheap.explain(tmp_path / "leak.pickle.gz")["verdict"]["kind"] == "leak"


def test_the_demonstration_says_how_it_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["demo", "--help"]) == 0
    assert "Usage: gpuheap demo" in capfd.readouterr().out
    assert command.main(["demo", "one", "two"]) == 2
    assert "`two`" in capfd.readouterr().err


def test_the_demonstration_says_where_it_cannot_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.touch()
    assert command.main(["demo", str(file)]) == 2
    assert capfd.readouterr().err == (
        f"error: Failed to write to `{file}`\n  cause: File exists\n\n"
        "hint: name a folder that you may write to: `gpuheap demo FOLDER`\n"
    )


def test_ctrl_c_ends_the_command() -> None:
    # A recording that never comes: standard input stays open.
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuheap", "explain", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(2)
        assert process.wait(10) == -2
