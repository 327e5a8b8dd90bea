"""The extension module."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest

import gpuheap


def test_explain_is_the_json_report(examples: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = examples / "llama_oom.pickle.gz"
    assert gpuheap.main(["explain", str(path), "--json", "--limit", "80GiB", "--at", "peak"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert gpuheap.explain(path, limit="80GiB", at="peak") == printed
    assert gpuheap.explain(str(path), limit=80 << 30, at="peak") == printed
    assert printed["schema"] == "gpuheap.report/1"


def test_the_own_form_says_the_same(examples: Path, tmp_path: Path) -> None:
    path = examples / "loss_accumulate.pickle.gz"
    gpuheap.convert(path, tmp_path / "file.gpuheap")
    gpuheap.convert(path.read_bytes(), tmp_path / "bytes.gpuheap")
    assert (tmp_path / "file.gpuheap").read_bytes() == (tmp_path / "bytes.gpuheap").read_bytes()
    first, second = gpuheap.explain(path), gpuheap.explain(tmp_path / "file.gpuheap")
    for key in ("verdict", "peaks", "ledger", "steps"):
        assert first[key] == second[key]


def test_a_page_is_written(examples: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    gpuheap.html(examples / "loss_accumulate.pickle.gz", out)
    assert "</html>" in out.read_text()[-20:]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_errors_have_a_cause_and_a_hint(tmp_path: Path, examples: Path) -> None:
    with pytest.raises(gpuheap.Error, match=r"Failed to open `.*nothing`\n  cause: No such file") as caught:
        gpuheap.explain(tmp_path / "nothing")
    assert caught.value.hint is None
    with pytest.raises(gpuheap.Error, match="Failed to open `nothing`") as caught:
        gpuheap.explain("nothing")
    assert caught.value.hint == "paths start from the folder in which the program runs"
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(b"\x80\x04\x95")
    with pytest.raises(gpuheap.Error) as caught:
        gpuheap.explain(cut)
    assert caught.value.hint is not None
    assert str(caught.value) == f"{caught.value.message}\n\nhint: {caught.value.hint}"
    with pytest.raises(gpuheap.Error, match="device 7") as caught:
        gpuheap.explain(examples / "loss_accumulate.pickle.gz", device=7)
    assert caught.value.hint == "leave `device` out to take the fullest"
    for options in ({"at": "noon"}, {"limit": "a lot"}):
        with pytest.raises(gpuheap.Error, match="Failed to read `"):
            gpuheap.explain(examples / "loss_accumulate.pickle.gz", **options)  # type: ignore[arg-type]


def test_files_are_replaced_as_a_whole_or_not_at_all(tmp_path: Path, examples: Path) -> None:
    out = tmp_path / "out.gpuheap"
    out.write_text("before")
    with pytest.raises(gpuheap.Error):
        gpuheap.convert(b"no recording", out)
    assert out.read_text() == "before"
    with pytest.raises(gpuheap.Error, match="Failed to write"):
        gpuheap.convert(examples / "loss_accumulate.pickle.gz", tmp_path / "no" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["out.gpuheap"]


def test_other_threads_go_on(examples: Path) -> None:
    longest, stopped = 0.0, False

    def watch() -> None:
        nonlocal longest
        last = time.monotonic()
        while not stopped:
            time.sleep(0.001)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.monotonic()
    gpuheap.explain(examples / "gpt2_varlen.pickle.gz")
    took = time.monotonic() - start
    stopped = True
    thread.join()
    # With the lock held it would be all of it.
    assert longest < max(0.5 * took, 0.25)


def test_ctrl_c_is_answered_at_once(tmp_path: Path, examples: Path) -> None:
    out = tmp_path / "page.html"
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            gpuheap.html(examples / "gpt2_varlen.pickle.gz", out)
            out.unlink(missing_ok=True)
    assert time.monotonic() - start < 5
    # The work comes to its end unseen. It may have been just over when the signal came.
    existed = out.exists()
    time.sleep(0.5)
    assert out.exists() == existed
