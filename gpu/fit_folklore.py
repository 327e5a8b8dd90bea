"""What the usual ways to save memory save and cost, each for itself: one table for three models.

    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl [--minutes 4]        on one GPU
    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl --two                on two GPUs: what sharding saves
    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl --row "as it is" --row "gpt2:*8-bit*" --warm 80
    PYTHONPATH=python python gpu/fit_folklore.py OUT.jsonl --small --row "as it is"      anywhere: does the script work

Peaks are those of a whole run from loading on, times the median of steps after the second. Rows of evaluation are
compared with evaluation. Nothing is tuned: each row is the model as people train it, and one change. Rows that compile
take a minute each, nearly all of it on one core: with `--warm` those of all models are compiled at once before
anything is measured, and what is measured then finds the kernels in the compiler's cache.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

MODELS = {"resnet152": 32, "bert_large": 16, "gpt2": 8}
BF16 = {"lever": "autocast", "dtype": "bfloat16"}
COMPILED = ("8-bit optimizer", "torch.compile", "torch.compile, budget 0.5")
"""Rows for which something is compiled at the first step."""


def chosen(model: str, patterns: list[str]) -> list[tuple[str, list[dict[str, Any]], str]]:
    """The rows of a model that one of the patterns (`ROW` or `MODEL:ROW`, with `*`) names, by the patterns' order."""
    found = []
    for row in rows(model):
        names = (row[0], f"{model}:{row[0]}")
        fits = [at for at, pattern in enumerate(patterns) if any(fnmatch.fnmatchcase(name, pattern) for name in names)]
        if fits or not patterns:
            found.append((fits[:1], row))
    return [row for _, row in sorted(found, key=lambda one: one[0])]


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


def worker(model: str, out: Path | None, until: float, patterns: list[str], *, small: bool) -> None:
    """The chosen rows of a model; without a file only those that compile, for the compiler's cache."""
    import torch
    from fit_runs import make_of, run, write
    from torch.nn.utils import prune

    if small:
        shrink()
    batch = MODELS[model]
    for name, levers, kind in chosen(model, patterns):
        if out is None and name not in COMPILED:
            continue
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

        real = run(make, levers, steps=1 if out is None else 5, seconds=2.0)
        if out is None:
            done = real.get("error", "").partition("\n")[0] or f"compiled in {real['seconds']:.1f} s"
            print(f"{model}: {name}: {done}", flush=True)
            continue
        write({"model": model, "batch": batch, "name": name, "kind": kind, "levers": levers, "real": real}, out)


def shrink() -> None:
    """Models of the same make in a size that a processor alone trains in no time, to try the script."""
    import dataclasses

    import zoo
    from torchvision.models.resnet import Bottleneck, ResNet
    from zoo_language import hugging_face, tokens

    small = {
        "resnet152": (lambda: ResNet(Bottleneck, [1, 2, 1, 1]), None),
        "bert_large": (
            hugging_face(
                "BertForMaskedLM",
                "BertConfig",
                num_hidden_layers=2,
                hidden_size=128,
                num_attention_heads=2,
                intermediate_size=512,
            ),
            tokens(30000, 32),
        ),
        "gpt2": (hugging_face("GPT2LMHeadModel", "GPT2Config", n_embd=128, n_layer=2, n_head=2), tokens(50000, 32)),
    }
    for model, (build, batch) in small.items():
        spec = zoo.MODELS[model]
        zoo.MODELS[model] = dataclasses.replace(spec, build=build, batch=batch or spec.batch)
        MODELS[model] = 4


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
    parser.add_argument("--row", action="append", default=[], metavar="[MODEL:]ROW", help="only these; may have *")
    parser.add_argument("--warm", type=float, default=0.0, metavar="SECONDS", help="compile beside each other before")
    parser.add_argument("--small", action="store_true", help="small models, to try the script without a GPU")
    parser.add_argument("--worker", metavar="MODEL")
    parser.add_argument("--compile", action="store_true", help="as a worker: measure nothing")
    parser.add_argument("--until", type=float)
    options = parser.parse_args()
    if options.worker:
        out = None if options.compile else options.out
        worker(options.worker, out, options.until, options.row, small=options.small)
        return
    if options.two:
        two(options.out)
    elif not options.table:
        measured(options)
    table(options.out)


def measured(options: argparse.Namespace) -> None:
    """All models one after the other, each in a process that ends when its time does."""
    ends = time.time() + options.minutes * 60

    def started(model: str, until: float, *more: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, *[f"-W{one}" for one in sys.warnoptions], __file__, str(options.out)]
        line += ["--worker", model, "--until", str(until), *more]
        for pattern in options.row:
            line += ["--row", pattern]
        return subprocess.Popen([*line, "--small"] if options.small else line)

    def ended(process: subprocess.Popen[bytes], model: str, latest: float) -> None:
        try:
            process.wait(max(latest - time.time(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            print(f"{model}: ended after its time, in the middle of a row", flush=True)

    if options.warm:
        until = time.time() + options.warm
        beside = [(model, started(model, until, "--compile")) for model in MODELS]
        for model, process in beside:
            ended(process, model, until)
    begun = time.time()
    for number, model in enumerate(MODELS, 1):
        until = begun + (ends - begun) * number / len(MODELS)
        # A row that compiles can overrun the share of its model, but not into the last one's.
        ended(started(model, until), model, (until + ends) / 2 if number < len(MODELS) else ends)


if __name__ == "__main__":
    main()
