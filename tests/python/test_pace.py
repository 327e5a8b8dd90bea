"""When stacks are walked, and the thread that sees to it."""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import pytest

from gpuheap._record import pace as _pace
from gpuheap._record.beat import FIRST_SAVE, Beat
from gpuheap._record.pace import Pace


def simulate(rate: float, walk: float, seconds: float, share: float = _pace.SHARE) -> tuple[float, list[bool], Pace]:
    """A program with `rate` allocations a second: the share of its time in walks, and what was turned."""
    turned: list[bool] = []
    pace = Pace(turned.append, walk, share)
    now, walked, allocated, on = 0.0, 0.0, 0, True
    first = _pace.WHOLE / max(rate, 1) + 1.0
    while now < seconds:
        wait = pace.next(now, allocated)
        assert 0 < wait <= _pace.LONGEST
        if turned:
            on = turned[-1]
        if on and now > first:
            walked += wait * rate * walk
        allocated += int(rate * wait)
        now += wait
    return walked / (seconds - first), turned, pace


@pytest.mark.parametrize("rate", [30_000, 70_000, 300_000])
@pytest.mark.parametrize("walk", [1.5e-6, 4e-6])
def test_walks_take_their_share_and_no_more(rate: float, walk: float) -> None:
    share, turned, pace = simulate(rate, walk, 60)
    assert share <= max(1.1 * _pace.SHARE / 3, rate * walk / 100)
    assert share >= 0.4 * _pace.SHARE / 3, "nothing would be recorded at all"
    assert turned[0] is False
    # Never off for longer than the longest period.
    assert len(pace.all_gaps()) >= 55 / _pace.LONGEST - 2


@pytest.mark.parametrize("rate", [0, 100, 6_000])
def test_a_program_of_few_allocations_is_recorded_whole(rate: float) -> None:
    _, turned, pace = simulate(rate, 3e-6, 30)
    assert turned == []
    assert pace.all_gaps() == []


def test_a_program_that_calms_down_is_recorded_whole_again() -> None:
    turned: list[bool] = []
    pace = Pace(turned.append, 3e-6)
    now, allocated = 0.0, 0
    for rate in (100_000, 100):
        for _ in range(200):
            wait = pace.next(now, allocated)
            now, allocated = now + wait, allocated + int(wait * rate)
    assert turned[-1] is True
    assert pace.all_gaps() == pace.gaps
    # The counters of a process may start again.
    assert pace.next(now + 1, 0) > 0
    assert pace.next(now + 1, 0) > 0


def test_an_open_gap_ends_now_and_is_closed_at_the_end() -> None:
    turned: list[bool] = []
    pace = Pace(turned.append, 3e-6)
    pace.next(0.0, 0)
    pace.next(0.1, _pace.WHOLE - 1)
    assert pace.all_gaps() == [], "the first allocations are recorded whole"
    pace.next(0.2, 100_000)
    before = time.time_ns() // 1000
    (gap,) = pace.all_gaps()
    assert gap[0] <= before <= gap[1]
    assert pace.gaps == []
    pace._set(True)
    pace._set(True)
    assert turned == [False, True]
    assert len(pace.gaps) == 1


def test_gaps_of_a_week_take_no_week_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pace, "MOST_GAPS", 10)
    pace = Pace(lambda on: None, 3e-6)
    for _ in range(1000):
        pace._set(False)
        pace._set(True)
        assert len(pace.gaps) <= 10
    assert pace.gaps == sorted(pace.gaps)


def test_the_price_of_a_walk_is_measured_or_assumed() -> None:
    torch: Any = types.SimpleNamespace(_C=types.SimpleNamespace())
    assert _pace.walk_seconds(torch) == _pace.UNKNOWN_WALK
    walks = []
    torch._C._profiler = types.SimpleNamespace(gather_traceback=lambda **options: walks.append(options))
    assert 0.5e-6 <= _pace.walk_seconds(torch) < 1
    assert walks[0] == {"python": True, "script": False, "cpp": False}


def test_counters_of_all_devices_count() -> None:
    stats = {"allocation": {"all": {"allocated": 21}}}
    torch: Any = types.SimpleNamespace(_C=types.SimpleNamespace(_cuda_memoryStats=lambda device: stats))
    assert _pace.allocations(torch, range(2)) == 42


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_tasks_come_when_they_are_due() -> None:
    clock, done = Clock(), []

    def pace() -> float:
        done.append("pace")
        return 0.25

    def save() -> None:
        done.append("save")
        clock.now += 2.0

    beat = Beat(pace=pace, ask=lambda: done.append("ask"), save=save, clock=clock)
    for _ in range(int(FIRST_SAVE / 0.25)):
        clock.now += beat.turn()
    assert done.count("save") == 0
    assert abs(done.count("pace") - FIRST_SAVE / 0.25) <= 1
    assert abs(done.count("ask") - FIRST_SAVE) <= 1
    # A save that took two seconds is made every ten minutes.
    done.clear()
    started = clock.now
    while done.count("save") < 3:
        clock.now += beat.turn()
    assert 1200 <= clock.now - started <= 1300


def test_what_fails_is_tried_again_and_disturbs_nobody() -> None:
    clock, tries = Clock(), []

    def fails() -> float:
        tries.append(clock.now)
        raise RuntimeError("driver gone")

    beat = Beat(pace=fails, ask=fails, save=None, clock=clock)
    for _ in range(20):
        clock.now += beat.turn()
    assert len(tries) >= 10
    assert Beat(pace=None, ask=None, save=None).turn() > 0


def test_the_thread_ends_when_told_from_without_and_within() -> None:
    asked = threading.Event()

    def pace() -> float:
        asked.set()
        return 0.001

    beat = Beat(pace=pace, ask=None, save=None)
    beat.start()
    assert asked.wait(10)
    beat.end()
    beat.end()
    assert not any(thread.name == "gpuheap-record" for thread in threading.enumerate())
    ended = threading.Event()

    def from_within() -> float:
        own.end()
        ended.set()
        return 0.001

    own = Beat(pace=from_within, ask=None, save=None)
    own.start()
    assert ended.wait(10)
