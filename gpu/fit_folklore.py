"""What the usual ways to save memory save and cost, each for itself: one table for three models.

    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl [--minutes 4]        on one GPU
    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl --two                on two GPUs: what sharding saves

Peaks are those of a whole run from loading on, times the median of steps after the second. Rows of evaluation are
compared with evaluation. Nothing is tuned: each row is the model as people train it, and one change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

MODELS = {"resnet152": 32, "bert_large": 16, "gpt2": 8}
BF16 = {"lever": "autocast", "dtype": "bfloat16"}


def rows(model: str) -> list[tuple[str, list[dict[str, Any]], str]]:
    """Name, levers, and whether it trains, evaluates, or trains with masks."""
    from fit_runs import blocks_of

    blocks = blocks_of(model)
    every = {"lever": "checkpoint", "modules": blocks}
    half = {"lever": "checkpoint", "modules": blocks[::2]}
    head = (
        []
        if model == "resnet152"
        else [("loss in 8 chunks", [{"lever": "loss", "form": "chunked", "chunks": 8}], "train")]
    )
    return [
        ("as it is", [], "train"),
        ("autocast bf16", [BF16], "train"),
        ("autocast fp16 with GradScaler", [{"lever": "autocast", "dtype": "float16"}], "train"),
        ("parameters bf16", [{"lever": "parameters", "dtype": "bfloat16"}], "train"),
        ("checkpoint all blocks", [every], "train"),
        ("checkpoint every second block", [half], "train"),
        ("checkpoint all but products", [{"lever": "selective_checkpoint", "modules": blocks}], "train"),
        ("checkpoint all, autocast bf16", [every, BF16], "train"),
        ("activations to the host", [{"lever": "offload_activations", "modules": blocks}], "train"),
        ("optimizer state to the host", [{"lever": "offload_optimizer"}], "train"),
        ("optimizer state bf16", [{"lever": "optimizer_state", "dtype": "bfloat16"}], "train"),
        ("foreach=False", [{"lever": "optimizer", "form": "for_loop"}], "train"),
        ("fused=True", [{"lever": "optimizer", "form": "fused"}], "train"),
        ("step in backward", [{"lever": "optimizer", "form": "in_backward"}], "train"),
        ("8-bit optimizer", [{"lever": "optimizer", "form": "8bit"}], "train"),
        *head,
        ("4 smaller batches", [{"lever": "accumulate", "factor": 4}], "train"),
        ("expandable segments", [{"lever": "allocator", "conf": "expandable_segments:True"}], "train"),
        ("pruned by half, with masks", [], "masks"),
        ("pruned by half, for good", [{"lever": "prune", "amount": 0.5}], "train"),
        ("evaluation, gradients on", [], "gradients"),
        ("evaluation in inference mode", [{"lever": "inference_mode"}], "evaluate"),
        (
            "int8 weights, inference mode",
            [{"lever": "quantize", "dtype": "int8"}, {"lever": "inference_mode"}],
            "evaluate",
        ),
        ("torch.compile", [{"lever": "compile", "activation_memory_budget": 1.0}], "train"),
        ("torch.compile, budget 0.5", [{"lever": "compile", "activation_memory_budget": 0.5}], "train"),
    ]


def worker(model: str, out: Path, until: float, seconds: float) -> None:
    """All rows of a model."""
    import torch
    from fit_runs import make_of, run, write
    from torch.nn.utils import prune

    batch = MODELS[model]
    for name, levers, kind in rows(model):
        if time.time() > until:
            print(f"{model}: no time for {name}", flush=True)
            continue
        make = make_of(model, batch, frozen=kind == "evaluate")
        if kind == "masks":

            def make(made: Any = make) -> Any:
                net, optimizer, loss, data = made()
                for module in net.modules():
                    if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
                        prune.l1_unstructured(module, "weight", amount=0.5)
                return net, optimizer, loss, data

        elif kind == "gradients":

            def make(made: Any = make) -> Any:
                net, optimizer, loss, data = made()

                def forward(model: Any, optimizer: Any, batch: Any) -> Any:
                    from gpuheap._fit.program import loss_of

                    return loss_of(net, loss, batch).detach()

                forward.whole_step = True  # type: ignore[attr-defined]
                return net.eval(), optimizer, forward, data

        real = run(make, levers, steps=5, seconds=seconds)
        write({"model": model, "batch": batch, "name": name, "kind": kind, "levers": levers, "real": real}, out)


def two(out: Path) -> None:
    """What sharding over two GPUs saves on each, the batch of both being that of one before."""
    from fit_runs import write

    from gpuheap._fit.verify import run_plan
    from gpuheap.errors import Error

    for model, batch in MODELS.items():
        make = f"{Path(__file__).parent / 'zoo.py'}:{model}__b{batch}"
        for form in ("data", "fsdp2", "tensor", "pipeline"):
            levers = [{"lever": "shard", "form": form, "gpus": 2}]
            try:
                real = run_plan({"plan": levers}, make, steps=4)
            except Error as error:
                real = {"error": str(error).splitlines()[0]}
            row = {"model": model, "batch": batch, "name": f"two GPUs, {form}", "kind": "train", "levers": levers}
            write({**row, "real": real}, out)


def table(out: Path) -> None:
    """Each row against the model as it is, in Markdown."""
    gib = 1 << 30
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    for model in MODELS:
        own = [row for row in found if row["model"] == model]
        base = next((row["real"] for row in own if row["name"] == "as it is" and "error" not in row["real"]), None)
        evaluated = next(
            (row["real"] for row in own if row["kind"] == "gradients" and "error" not in row["real"]), None
        )
        print(f"\n{model}, batch {MODELS[model]}\n\n| | peak allocated | peak reserved | step |")
        print("| --- | --- | --- | --- |")
        for row in own:
            real, to = row["real"], evaluated if row["kind"] == "evaluate" else base
            if "error" in real or real.get("out_of_memory"):
                print(f"| {row['name']} | {(real.get('error') or 'out of memory').splitlines()[0]} | | |")
                continue
            cells = []
            for key, unit, scale in (
                ("allocated_bytes", "GiB", gib),
                ("reserved_bytes", "GiB", gib),
                ("step_us", "ms", 1e3),
            ):
                text = f"{real[key] / scale:.{2 if unit == 'GiB' else 0}f} {unit}"
                if to and to[key] and row["name"] not in ("as it is",):
                    text += f" ({real[key] / to[key] - 1:+.0%})"
                cells.append(text)
            print(f"| {row['name']} | {' | '.join(cells)} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--two", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worker", metavar="MODEL")
    parser.add_argument("--until", type=float)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.out, options.until, seconds=2.0)
        return
    if options.two:
        two(options.out)
    elif not options.table:
        begun = time.time()
        for number, model in enumerate(MODELS, 1):
            until = begun + options.minutes * 60 * number / len(MODELS)
            line = [sys.executable, __file__, str(options.out), "--worker", model, "--until", str(until)]
            subprocess.run(line, check=False)
    table(options.out)


if __name__ == "__main__":
    main()
