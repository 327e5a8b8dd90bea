"""Two ranks on the CPU: sharded programs give the losses of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not getattr(getattr(torch, "distributed", None), "is_available", bool)():
    pytest.skip("this PyTorch has no `torch.distributed`", allow_module_level=True)

PROGRAM = Path(__file__).with_name("support_fit_ranks.py")


def shard(form: str, **more: Any) -> dict[str, Any]:
    return {"lever": "shard", "form": form, "gpus": 2, **more}


CHECKPOINT = {"lever": "checkpoint", "modules": ["layers.0", "layers.3", "layers.4"]}
CASES: dict[str, list[dict[str, Any]]] = {
    "data": [shard("data")],
    "data, accumulated": [shard("data"), {"lever": "accumulate", "factor": 2}],
    "fsdp2": [shard("fsdp2")],
    "fsdp2, checkpointed": [shard("fsdp2"), CHECKPOINT],
    "fsdp2, named": [shard("fsdp2", modules=["layers.0", "layers.1"]), {"lever": "accumulate", "factor": 2}],
    "tensor": [shard("tensor")],
    "tensor, checkpointed": [shard("tensor"), CHECKPOINT],
    "pipeline": [shard("pipeline")],
    "pipeline, by counts": [shard("pipeline", stages=[4, 1], microbatches=2)],
    "pipeline, by names": [shard("pipeline", stages=["layers.0", "layers.2"]), CHECKPOINT],
}
REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "three": ([{"lever": "shard", "form": "fsdp2", "gpus": 3}], "is for 3 GPUs, and 2 processes are running"),
    "stages": ([shard("pipeline", stages=[1, 1])], "do not cut the 5 blocks"),
    "state": ([shard("fsdp2"), {"lever": "offload_optimizer"}], "FSDP2 has `CPUOffloadPolicy`"),
    "backward": ([shard("data"), {"lever": "optimizer", "form": "in_backward"}], "gradients are exchanged"),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    cases = {**CASES, **{name: levers for name, (levers, _) in REFUSED.items()}}
    line = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*line, str(PROGRAM), json.dumps(cases)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_one_process(found: dict[str, Any], name: str) -> None:
    assert found[name] == pytest.approx(found["expected"], rel=1e-4), found[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sharded_is_refused(found: dict[str, Any], name: str) -> None:
    assert REFUSED[name][1] in found[name]


def test_stages_have_even_bytes() -> None:
    from gpuheap._fit.apply.chain import chain_of, cut_points

    blocks = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), blocks)
    chain = chain_of(model)
    assert chain.name == "1" and chain.names[2] == "1.2"
    # The embedding is worth more than all blocks: its stage has the least of them.
    assert cut_points(chain, None, 2) == [0, 1]
    assert cut_points(chain_of(blocks), None, 3) == [0, 2, 4]
    four = cut_points(chain_of(blocks), None, 4)
    assert len(four) == 4 and max(b - a for a, b in zip(four, [*four[1:], 6], strict=True)) == 2


def test_pairs_are_found_by_their_names() -> None:
    from gpuheap._fit.apply.tensor_parallel import pairs_of

    layer = torch.nn.TransformerEncoderLayer(16, 2, 32)
    pairs = pairs_of(torch.nn.Sequential(layer, torch.nn.Linear(16, 4)))
    assert pairs == [("0", ["0.linear1"], "0.linear2")]
    assert pairs_of(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))) == []
