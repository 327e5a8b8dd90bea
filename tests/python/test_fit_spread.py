"""One rank of two, traced alone: what it holds, what crosses the link, and on which streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not getattr(getattr(torch, "distributed", None), "is_available", bool)():
    pytest.skip("this PyTorch has no `torch.distributed`", allow_module_level=True)

HERE = Path(__file__).parent
BATCH, TOKENS, WIDTH, BLOCKS = 8, 16, 64, 4


class Rank:
    """A trace, with what tests ask of it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.events: list[list[Any]] = found["events"]
        storages = found["storages"]
        self.bytes: list[int] = storages["bytes"]
        self.classes: list[str] = storages["class"]
        self.streams: list[int] = storages.get("stream") or [0] * len(self.bytes)

    def alive(self) -> list[int]:
        """The storages that are alive at the end."""
        found: set[int] = set()
        for event in self.events:
            if event[0] == "alloc":
                assert event[1] not in found
                found.add(event[1])
            elif event[0] == "free":
                found.remove(event[1])
        return sorted(found)

    def held(self, kind: str) -> int:
        """Bytes of a class at the end."""
        return sum(self.bytes[one] for one in self.alive() if self.classes[one] == kind)

    def second(self) -> list[list[Any]]:
        """The events of the second step."""
        return self.events[self.events.index(["step", 2]) :]

    def calls(self, name: str) -> list[list[Any]]:
        """The calls of an operator in the second step."""
        ops = self.found["ops"]
        return [event for event in self.second() if event[0] == "op" and ops[event[1]].startswith(name)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("traces")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "support_fit_spread.py"), str(folder)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def parameters(found: dict[str, Any]) -> int:
    return int(found["one"]["model"]["parameter_bytes"])


@pytest.mark.parametrize(
    "name", ["data", "fsdp2", "fsdp2 fused", "tensor", "tensor fused", "pipeline", "pipeline eight"]
)
def test_traces_hold_together(found: dict[str, Any], name: str) -> None:
    assert "error" not in found[name], found[name]
    for one in (found[name], *found[name].get("ranks", ())):
        rank = Rank(one)
        assert rank.alive() and one["batch"]["size"] == BATCH
        assert not one["unknown"] and not one["source"]["notes"]
        recorded = {event[1] for event in rank.events if event[0] == "record"}
        assert all(event[2] in recorded for event in rank.events if event[0] == "wait")


def test_fsdp2_holds_a_part_of_everything_that_lasts(found: dict[str, Any]) -> None:
    whole, rank = Rank(found["one"]), Rank(found["fsdp2"])
    # One row more where a dimension is odd: the last rank has it less.
    assert rank.held("parameter") == pytest.approx(parameters(found) / 2, rel=0.01)
    assert rank.held("optimizer") == pytest.approx(whole.held("optimizer") / 2, rel=0.01)
    gathered = rank.calls("c10d._allgather_base_")
    # Blocks forward and backward, the rest once: it stays whole in between.
    assert len(gathered) == 2 * BLOCKS + 1
    assert len(rank.calls("c10d._reduce_scatter_base_")) == BLOCKS + 1
    # Each rank gets the half that it has not.
    received = sum(call[6] for call in rank.calls("c10d._reduce_scatter_base_"))
    assert received == pytest.approx(parameters(found) / 2, rel=0.01)
    # Exchanges have streams of their own, and the allocator keeps their memory apart.
    streams = Counter(call[9] if len(call) > 9 else 0 for call in gathered)
    assert 0 not in streams and any(rank.streams)
    reduced = {call[9] if len(call) > 9 else 0 for call in rank.calls("c10d._reduce_scatter_base_")}
    assert 0 not in reduced and reduced != set(streams)
    assert any(event[0] == "wait" and event[1] == 0 for event in rank.second())


def test_fsdp2_gives_the_memory_of_whole_parameters_back(found: dict[str, Any]) -> None:
    rank = Rank(found["fsdp2"])
    block = WIDTH * WIDTH * 4
    whole = [number for number, size in enumerate(rank.bytes) if size == block and rank.streams[number] == 0]
    made = Counter(event[1] for event in rank.events if event[0] == "alloc")
    assert all(made[number] == 1 for number in whole)
    # Four square layers a block, gathered twice a step: most of these are gone at the end.
    assert len(whole) > 4 * BLOCKS * 2 and len([one for one in rank.alive() if one in whole]) < 4 * BLOCKS


def test_data_parallel_gradients_are_views_of_buckets(found: dict[str, Any]) -> None:
    rank = Rank(found["data"])
    trained = parameters(found)
    first = [event for event in rank.events[: rank.events.index(["step", 1])] if event[0] == "alloc"]
    assert trained in [rank.bytes[event[1]] for event in first], "one bucket for all gradients at first"
    sums = sum(call[5] for call in rank.calls("c10d.allreduce_"))
    # Of two ranks each sends as much as there is; and the weights of the losses.
    assert trained <= sums <= trained + 64
    assert len(rank.calls("aten.copy_")) >= 4 * BLOCKS


def test_tensor_parallel_layers_are_cut_and_summed(found: dict[str, Any]) -> None:
    rank = Rank(found["tensor"])
    sums = rank.calls("_c10d_functional.all_reduce")
    # Forward one sum behind attention and one behind the feed-forward part; backward one for each layer at their front.
    assert len(sums) == BLOCKS * (2 + 3 + 1)
    hidden = BATCH * TOKENS * WIDTH * 4
    assert {call[5] for call in sums} == {hidden}
    cut = BLOCKS * (4 * WIDTH * WIDTH + 2 * WIDTH * (3 * WIDTH + 2)) * 4 // 2
    assert parameters(found) - rank.held("parameter") == pytest.approx(cut, rel=0.02)


def test_every_stage_of_a_pipeline_is_traced(found: dict[str, Any]) -> None:
    first = Rank(found["pipeline"])
    (rest,) = found["pipeline"]["ranks"]
    last = Rank(rest)
    assert found["pipeline"]["micro_batches"] == rest["micro_batches"] == 4
    assert found["pipeline eight"]["micro_batches"] == 8
    hidden = BATCH // 4 * TOKENS * WIDTH * 4
    assert [call[5] for call in first.calls("c10d.send")] == [hidden] * 4
    assert [call[6] for call in last.calls("c10d.recv_")] == [hidden] * 4
    # The embedding is the head as well, so that both have it.
    both = first.held("parameter") + last.held("parameter")
    shared = 50 * WIDTH * 4
    assert both == pytest.approx(parameters(found) + shared, abs=WIDTH * 8)
    assert first.held("parameter") < 0.7 * parameters(found)


def test_what_cannot_be_spread_is_said(found: dict[str, Any]) -> None:
    assert "no pairs of linear layers with names that are known" in found["plain tensor"]["error"]


def test_streams_are_told_apart() -> None:
    from gpuheap._fit.streams import Streams

    streams = Streams()
    said: list[tuple[str, int, int]] = []
    streams.on_record = lambda event, stream: said.append(("record", event, stream))
    streams.on_wait = lambda stream, event: said.append(("wait", stream, event))
    one, two = streams.Stream(), streams.Stream(priority=-1)
    assert one != two and streams.current_stream() == streams.default
    with streams.on(one):
        assert streams.current == one.stream_id
        with two:
            event = two.record_event()
        one.wait_event(event)
    assert streams.current == 0
    one.wait_stream(two)
    streams.Event().wait()
    assert said == [
        ("record", 0, two.stream_id),
        ("wait", one.stream_id, 0),
        ("record", 1, two.stream_id),
        ("wait", one.stream_id, 1),
    ]
    # The pool of a priority has so many; the next is the first of them again.
    more = [streams.Stream() for _ in range(32)]
    assert more[-1] == one
