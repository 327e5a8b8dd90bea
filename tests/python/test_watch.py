"""The health check: steps, devices, ends, processes. Counters come from functions: no GPU is needed."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import gpuheap
from gpuheap._watch.pace import Pace
from gpuheap._watch.source import Given

MIB = 1 << 20


class Program:
    """A make-believe allocator: `leak` blocks of a MiB stay of each step."""

    def __init__(self, leak: int = 0, base: int = 40) -> None:
        self.asked = 0
        self.leak = leak
        self.base = base

    def __call__(self) -> Mapping[str, Any]:
        self.asked += 1
        blocks = self.base + self.leak * self.asked
        return {
            "allocated": blocks * MIB,
            "blocks": blocks,
            "reserved": 2048 * MIB,
            "peak_active": 1024 * MIB,
            "peak_reserved": 2048 * MIB,
            "free": 1000 * MIB,
            "total": 4096 * MIB,
            "others": 48 * MIB,
            "retries": 1,
        }


def run(steps: int, source: Any, **options: Any) -> tuple[gpuheap.watch, list[gpuheap.Health]]:
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(to=seen.append, source=source, **options) as watch:
        for _ in range(steps):
            watch.step()
    return watch, seen


def test_health_every_so_many_steps_and_at_the_end() -> None:
    watch, seen = run(25, Program(), every=10)
    assert [health.step for health in seen] == [10, 20, 25]
    assert watch.health == seen[-1]
    # A last judgement only if there is something new.
    assert [health.step for health in run(20, Program(), every=10)[1]] == [10, 20]


def test_a_leak() -> None:
    watch, seen = run(100, Program(leak=2), every=50)
    health = seen[-1]
    assert (health.kind, health.sick, health.confidence, health.device) == ("leak", True, "high", "memory")
    assert health.growth_bytes_per_step == 2 * MIB
    assert health.allocated_bytes == 240 * MIB
    assert health.blocks == 240
    assert health.waste == 0.5
    assert health.outside_bytes == (4096 - 1000 - 2048 - 48) * MIB
    assert health.steps_left == (500, 500 + (2048 - 240) // 2)
    assert health.seconds_left is not None
    assert health.sentence.startswith("Leak: +2.00 MiB per step (71 of 100 steps judged)")
    assert watch.summary() == f"step 100: {health.sentence}"


def test_no_leak() -> None:
    watch, _ = run(100, Program())
    health = watch.health
    assert health is not None
    assert (health.kind, health.sick, health.steps_left) == ("steady", False, None)
    assert "no leak in 71 steps judged" in health.sentence


def test_a_limit_of_the_users_counts_for_the_steps_left() -> None:
    health = run(100, Program(leak=1), limit="2.25GiB")[0].health
    assert health is not None and health.steps_left is not None
    assert health.steps_left[0] == 256


def test_several_devices_are_judged_one_by_one() -> None:
    programs = {"card:0": Program(), "card:1": Program(leak=1)}
    logged = Lines()
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(50, [seen.append, logged.logger], source=lambda: {k: p() for k, p in programs.items()}) as watch:
        for _ in range(100):
            watch.step()
    assert {name: health.kind for name, health in watch.healths.items()} == {"card:0": "steady", "card:1": "leak"}
    # The sick one is the one to look at.
    assert watch.health is not None and watch.health.device == "card:1"
    assert len(seen) == 4
    assert len(logged.lines) == 2
    assert logged.lines[0][1].startswith("step 50 (card:0): Healthy: ")
    assert logged.lines[1][1].startswith("step 50 (card:1): Leak: ")
    assert len(watch.summary().splitlines()) == 2


class Lines(logging.Handler):
    """A logger of its own that remembers."""

    def __init__(self, name: str = "test_watch") -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []
        self.logger = logging.getLogger(name)
        self.logger.handlers = [self]
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))


@pytest.fixture
def log() -> Iterator[Lines]:
    lines = Lines("gpuheap")
    yield lines
    lines.logger.handlers = []
    lines.logger.propagate = True


def test_the_log_has_news_only(log: Lines) -> None:
    program = Program()
    with gpuheap.watch(10, source=program) as watch:
        for step in range(400):
            program.leak = 1 if step == 200 else program.leak
            if step == 200:
                program.base -= program.asked
            watch.step()
    levels = [level for level, _ in log.lines]
    assert levels == [logging.INFO, logging.WARNING]
    assert "Healthy: " in log.lines[0][1] and "Leak: " in log.lines[1][1]


def test_steps_by_the_program_go_to_all_watches() -> None:
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(5, seen.append, source=Program()), gpuheap.watch(10, seen.append, source=Program()):
        for _ in range(10):
            gpuheap.step()
    assert [health.step for health in seen] == [5, 10, 10]
    gpuheap.step()
    assert len(seen) == 3


def test_start_and_stop_may_be_said_twice() -> None:
    program = Program()
    watch = gpuheap.watch(10, to=[], source=program)
    watch.step()
    assert program.asked == 0
    assert watch.start() is watch
    assert watch.start() is watch
    assert "under way" in repr(watch)
    for _ in range(10):
        gpuheap.step()
    assert program.asked == 10
    watch.stop()
    watch.stop()
    assert "not under way" in repr(watch)
    gpuheap.step()
    assert program.asked == 10
    # What was found stays, until it is started again.
    assert watch.health is not None
    watch.start()
    assert watch.health is None
    watch.stop()
    assert watch.summary() == "0 steps, nothing judged"


def test_exceptions_of_the_program_go_through() -> None:
    seen: list[gpuheap.Health] = []
    with pytest.raises(KeyError), gpuheap.watch(100, seen.append, source=Program()) as watch:
        watch.step()
        raise KeyError("the program's")
    assert len(seen) == 1


def test_nothing_to_watch_is_said_once(log: Lines) -> None:
    code = """
import logging, gpuheap
logging.basicConfig(format="%(message)s")
with gpuheap.watch(2) as watch:
    for _ in range(10):
        gpuheap.step()
print(watch.health, watch.summary())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines() == ["nothing to watch: no framework of this program uses a GPU"]
    assert done.stdout.strip() == "None 10 steps, nothing judged"


def test_counters_that_fail_end_the_watch_of_them_alone(log: Lines) -> None:
    calls = 0

    def source() -> Mapping[str, Any]:
        nonlocal calls
        calls += 1
        if calls > 15:
            raise OSError("gone")
        return {"allocated": 1}

    watch, seen = run(40, source, every=10)
    assert [health.step for health in seen] == [10]
    failed = [line for level, line in log.lines if level == logging.WARNING]
    assert failed == ["the counters of `memory` cannot be read: OSError: gone"]
    assert watch.health is None


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"allocated": 1, "blcks": 2}, "it does not know `blcks`"),
        ({"card": {"reserved": 1}}, "`allocated` is missing"),
        ({}, "its mapping is empty"),
        (None, "it returned `NoneType`"),
        (7, "it returned `int`"),
        ({"card": None}, "they are `NoneType`"),
        ({"allocated": None}, "`allocated` is missing"),
        ({"allocated": -1}, "`allocated` is -1, which no counter is"),
        ({"allocated": float("nan")}, "`allocated` is nan, which is no whole number"),
        ({"allocated": 1e9}, "is no whole number"),
        ({"allocated": 1, "free": 1 << 64}, "which no counter is"),
        ({"allocated": 1, "blocks": "5"}, "`blocks` is '5'"),
    ],
)
def test_a_source_that_says_something_else(answer: Any, cause: str) -> None:
    with pytest.raises(gpuheap.Error, match=cause), gpuheap.watch(to=[], source=lambda: answer) as watch:
        watch.step()


def test_each_answer_of_a_source_is_used_once() -> None:
    program = Program()
    given = Given(program)
    assert given.devices() == ["memory"]
    given.counters("memory")
    assert program.asked == 1
    given.counters("memory")
    given.devices()
    assert program.asked == 2


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"every": 0}, "`every` is 0"),
        ({"every": True}, "`every` is True"),
        ({"to": 7}, "cannot be written to `int`"),
        ({"to": "somewhere"}, "cannot be written to `somewhere`"),
        ({"limit": "much"}, "`much` is not an amount of memory"),
        ({"source": 7}, "`source` is no function"),
        ({"to": "missing/folder/health.jsonl"}, "No such file or directory"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(gpuheap.Error, match=cause):
        gpuheap.watch(**options)


def test_what_is_not_known_may_be_none(log: Lines) -> None:
    counters = ("blocks", "reserved", "peak_active", "retries", "ooms", "free", "total", "limit")
    _, seen = run(20, lambda: {"allocated": 5, **dict.fromkeys(counters)}, every=10)
    assert [(health.reserved_bytes, health.retries, health.blocks) for health in seen] == [(5, 0, None)] * 2


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("fails_at", [0, 5])
def test_an_error_that_cannot_be_said_does_not_end_the_training(log: Lines, fails_at: int) -> None:
    answers = iter([{"allocated": 1}] * fails_at)

    def source() -> Mapping[str, Any]:
        for answer in answers:
            return answer
        raise Unspeakable

    def sink(_: gpuheap.Health) -> None:
        raise Unspeakable

    with gpuheap.watch(every=2, to=["log", sink], source=source) as watch:
        for _ in range(10):
            watch.step()
    assert [line.rpartition(": ")[2] for level, line in log.lines if level == logging.WARNING][-1] == "Unspeakable"


def test_a_watch_that_is_begun_again_looks_at_collections_once() -> None:
    # As in a process that was forked off, which has what its parent registered.
    watch = gpuheap.watch(to=[])
    before = len(gc.callbacks)
    watch.start()
    watch._running = False
    watch.start()
    assert len(gc.callbacks) == before + 1
    watch.stop()
    assert len(gc.callbacks) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "health.jsonl"
    code = f"""
import os, gpuheap
watch = gpuheap.watch(1, {str(path)!r}, source=lambda: {{"allocated": 1}}).start()
watch.step()
watch._lock.acquire()  # as if another thread were in it
child = os.fork()
if child == 0:
    watch.step()
    gpuheap.step()
    watch.stop()
    # One of its own it may have.
    with watch.start():
        watch.step()
    os._exit(0)
watch._lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
watch.step()
watch.stop()
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    pids = [row["pid"] for row in rows]
    assert [row["step"] for row in rows] == [1, 1, 2]
    assert pids[0] == pids[2] != pids[1]


def test_steps_of_many_threads_are_all_counted() -> None:
    program = Program()
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(100, seen.append, source=program) as watch:
        threads = [threading.Thread(target=lambda: [watch.step() for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [health.step for health in seen] == [100, 200, 300, 400]
    assert program.asked == 400


def test_a_sink_that_steps_does_not_go_round_in_circles() -> None:
    seen: list[int] = []

    def sink(health: gpuheap.Health) -> None:
        seen.append(health.step)
        gpuheap.step()

    with gpuheap.watch(1, sink, source=Program()):
        gpuheap.step()
        gpuheap.step()
    assert seen == [1, 2]


def test_pace() -> None:
    now = 0.0
    pace = Pace(0.001, clock=lambda: now)
    assert pace.ready(now)
    now = 5.0
    pace.spent(0.02)
    assert not pace.ready(24.9)
    assert pace.ready(25.0)


def test_short_steps_are_looked_at_every_few(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["gpuheap.watch"]
    program = Program(leak=1)
    monkeypatch.setattr(Given, "paced", True)
    now = 0.0

    def clock() -> float:
        nonlocal now
        # Each look at the clock is 10 µs, so that counters cost as much.
        now += 1e-5
        return now

    monkeypatch.setattr(module, "Pace", lambda share: Pace(share, clock=clock))
    seen: list[gpuheap.Health] = []
    with gpuheap.watch(1000, seen.append, source=program) as watch:
        for _ in range(3000):
            now += 1e-3
            watch.step()
    # The first 64, then one of about thirty-four.
    assert 130 < program.asked < 180
    assert [health.kind for health in seen] == ["leak"] * 3
    # The make-believe leak is one block a question.
    assert seen[-1].growth_bytes_per_step == pytest.approx(MIB * (program.asked - 64) / 2936, rel=0.05)
