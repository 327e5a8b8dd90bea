"""Ranks that search for themselves and agree: two processes, no GPU."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import support_batch as steps
from gpuheap._batch.ranks import Ranks

torch = pytest.importorskip("torch")


def two_ranks(path: Path, factory: str, budget: str = "8MiB") -> dict[Any, Any]:
    context = get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=steps.rank_main, args=(rank, str(path / "group"), factory, budget, results))
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    told = [results.get(timeout=300) for _ in range(4)]
    for rank in ranks:
        rank.join(timeout=60)
        assert rank.exitcode == 0
    assert sorted(value[2] for value in told if value[1] == "sum") == [3, 3]
    return {value[0]: value[1:] for value in told if value[1] != "sum"}


def test_the_smallest_counts(tmp_path: Path) -> None:
    told = two_ranks(tmp_path, "make_ranked_step")
    for rank in (0, 1):
        largest, by_rank, accumulation, effective, text = told[rank]
        assert largest == min(by_rank) == by_rank[1] < by_rank[0]
        assert accumulation > 1
        assert abs(effective - 4096) < 400
        assert f"2 ranks found {by_rank[0]}, {by_rank[1]}: {largest} fits on all" in text
    assert told[0][:4] == told[1][:4]
    assert f"this rank was run with {told[0][1][0]}, not with {told[0][0]}" in told[0][4]


def test_a_failure_of_one_rank_is_told_on_all(tmp_path: Path) -> None:
    told = two_ranks(tmp_path, "make_failing_rank")
    assert told[1] == ("KeyError", "'only here'")
    kind, text = told[0]
    assert kind == "Error"
    assert text.startswith("`find_batch_size` failed on rank 1 of 2\n  cause: KeyError: 'only here'")


def test_a_rank_on_which_nothing_fits_does_not_hang_the_others(tmp_path: Path) -> None:
    told = two_ranks(tmp_path, "make_ranked_step", "3MiB")
    assert told[1][0] == "BatchSizeError"
    assert told[0][0] == "Error"
    assert "failed on rank 1 of 2" in told[0][1]


def test_alone() -> None:
    ranks = Ranks(None, 10)
    assert (ranks.size, ranks.rank) == (1, 0)
    assert ranks.agree(lambda: ("here", "told")) == ("here", ["told"])

    def fail() -> tuple[str, str]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        ranks.agree(fail)
    assert caught.value.__context__ is None
