"""The pages about the Python calls: what they show runs, and prints what they say. CONTRIBUTING.md has the marks."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import gpuheap

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "python"
PAGES = sorted([*FOLDER.glob("*.md"), ROOT / "docs" / "folklore.md"])
# Only ends what would never end.
HANGS_AFTER_S = 600
OUTPUTS = ("output", "stderr")


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    marks: list[str]
    text: str
    shown: list[Block] = field(default_factory=list)
    """What an example is said to print."""

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    open_: Block | None = None
    fence, lines = "", list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if open_ is None:
            found = re.fullmatch(r"(```+)\s*(.*)", line)
            if found:
                fence, (language, *marks) = found[1], found[2].split() or [""]
                open_, lines = Block(page, number, language, marks, ""), []
        elif line.strip() == fence:
            open_.text = "\n".join(lines)
            yield open_
            open_ = None
        else:
            lines.append(line)
    assert open_ is None, f"{page.name}: the block that begins in line {open_.line if open_ else 0} does not end"


def examples(page: Path) -> list[Block]:
    """The blocks that are run, with what they are said to print."""
    found: list[Block] = []
    for block in blocks(page):
        if block.language == "python" and block.marks[:1] == ["run"]:
            found.append(block)
        elif block.language == "text" and block.marks[:1] and block.marks[0] in OUTPUTS:
            assert found, f"{block.where}: the output of no example"
            found[-1].shown.append(block)
    return found


def all_examples() -> list[object]:
    params: list[object] = []
    for page in PAGES:
        for block in examples(page):
            marks = [pytest.mark.gpu] if "gpu" in block.marks else []
            params.append(pytest.param(block, id=block.where, marks=marks))
    return params


# What differs from run to run and from machine to machine. The spaces of a column follow its widest entry.
MASKS = [
    (re.compile(r"-?\d[\d.,]*\s?(?:[KMGTP]i?B|B)\b(?:/s)?"), "SIZE"),
    (re.compile(r"\d[\d.,]*\s?(?:ns|µs|us|ms|s|min|h)\b"), "TIME"),
    (re.compile(r"[-+]?\d[\d.,]*\s?%"), "PART"),
    (re.compile(r"[ \t]+"), " "),
]


def lines_of(text: str, *, exact: bool) -> list[str]:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    if exact:
        return lines
    for mask, instead in MASKS:
        lines = [mask.sub(instead, line) for line in lines]
    return [line.strip() for line in lines]


def agrees(shown: str, written: str, *, exact: bool = False) -> bool:
    """Whether a page shows what was written."""
    pattern = ""
    for line in lines_of(shown, exact=exact):
        pattern += r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines_of(written, exact=exact))) is not None


@pytest.mark.parametrize("example", all_examples())
def test_an_example_runs_and_prints_what_the_page_shows(example: Block, tmp_path: Path) -> None:
    for module in example.marks[1:]:
        if module != "gpu" and importlib.util.find_spec(module) is None:
            pytest.skip(f"`{module}` is not installed")
    program = tmp_path / "example.py"
    program.write_text(example.text + "\n", encoding="utf-8")
    # What TensorFlow says on every start is no part of an example.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        check=False,
    )
    assert done.returncode == 0, f"{example.where} failed\n{done.stdout}\n{done.stderr}"
    for block in example.shown:
        written = done.stdout if block.marks[0] == "output" else done.stderr
        if not agrees(block.text, written, exact="exact" in block.marks):
            pytest.fail(f"{block.where} shows\n{block.text}\n\nbut {example.where} wrote\n{written}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_is_python_and_its_names_exist(page: Path) -> None:
    known = {"run", "exact", "gpu", "torch", "jax", "tensorflow", "numpy", *OUTPUTS, "h200"}
    for block in blocks(page):
        if block.language not in ("python", "text"):
            continue
        assert set(block.marks) <= known, f"{block.where}: unknown marks {sorted(set(block.marks) - known)}"
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text, block.where)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gpuheap":
                assert node.attr in gpuheap.__all__, f"{block.where}: there is no `gpuheap.{node.attr}`"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: `{target}` is not there"


def test_every_page_and_every_call_is_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    for page in FOLDER.glob("*.md"):
        if page.name != "README.md":
            assert f"]({page.name})" in index, f"`{page.name}` is not in the index"
    for name in gpuheap.__all__:
        assert name == "__version__" or f"`{name}" in index or f"gpuheap.{name}" in index, f"`{name}` is not there"


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in gpuheap.__all__], ids=lambda page: page.name)
def test_a_page_names_every_parameter_of_its_call(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in inspect.signature(getattr(gpuheap, page.stem)).parameters:
        assert f"`{name}`" in text, f"{page.name} says nothing of the parameter `{name}`"


def test_what_a_page_may_leave_open() -> None:
    assert agrees("3 arrays, 1.50 GiB", "3 arrays,   700 MiB")
    assert agrees("took 12 ms (3 %)", "took 1.25 s (10 %)")
    assert agrees("collected … objects", "collected 854 objects")
    assert agrees("first\n…\nlast", "first\nlast") and agrees("first\n…\nlast", "first\n1\n2\nlast")
    assert not agrees("3 arrays", "4 arrays")
    assert not agrees("first", "first\nsecond")
    assert not agrees("held by `a`", "held by `b`")
    assert not agrees("1.50 GiB", "700 MiB", exact=True)
    assert agrees("1.50 GiB in …", "1.50 GiB in 3 places", exact=True)
