"""Traces of one rank of two that `test_fit_spread.py` looks at, in a process that does nothing else.

python support_fit_spread.py OUT_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from gpuheap._fit.errors import TraceError
from gpuheap._fit.trace import trace
from support_fit_ranks import VOCABULARY, Model

BATCH, TOKENS, WIDTH, BLOCKS = 8, 16, 64, 4


def make() -> Any:
    model = Model(width=WIDTH, blocks=BLOCKS)
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
    return model, torch.optim.AdamW(model.parameters()), None, {"tokens": tokens, "labels": tokens.clone()}


def plain() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    batch = (torch.randn(4, 8), torch.randint(0, 4, (4,)))
    return model, torch.optim.SGD(model.parameters()), torch.nn.CrossEntropyLoss(), batch


def main() -> None:
    out = Path(sys.argv[1])
    checkpoint = {"lever": "checkpoint", "modules": [f"layers.{number}" for number in range(BLOCKS)]}
    fused = {"lever": "optimizer", "form": "fused"}
    cases: dict[str, tuple[Any, str | None, list[dict[str, Any]]]] = {
        "one": (make, None, []),
        "data": (make, "data", []),
        "fsdp2": (make, "fsdp2", []),
        "fsdp2 fused": (make, "fsdp2", [checkpoint, fused]),
        "tensor": (make, "tensor", []),
        "tensor fused": (make, "tensor", [checkpoint, fused]),
        "pipeline": (make, "pipeline", []),
        "pipeline eight": (make, "pipeline", [checkpoint]),
        "plain tensor": (plain, "tensor", []),
    }
    for name, (program, form, more) in cases.items():
        shard: dict[str, Any] = {"lever": "shard", "form": form, "gpus": 2}
        if name == "pipeline eight":
            shard["microbatches"] = 8
        try:
            found = trace(program, levers=[*([shard] if form else []), *more])
        except TraceError as error:
            found = {"error": str(error)}
        (out / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
