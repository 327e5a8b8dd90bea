"""What the model of step times is learnt from: single operators, calls, and steps with nothing beside them.

    PYTHONPATH=python python gpu/fit_times.py OUT.jsonl [--seconds 85]
    PYTHONPATH=python python gpu/fit_times.py OUT.jsonl --only chains --only tables      a part of it

On one GPU that nobody else uses: steps that share the device with other processes are 10 to 20 % slower. Calls, chains
of them and operators come first, then the calibration models, then the others by turns, until the time is up.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from torch import nn

Work = Callable[[], Any]
SLEEP = 600_000
"""Cycles that the device is busy for while the program fills the queue."""


def device_us(work: Work, times: int = 5) -> float:
    """Without what the launch takes."""
    work()
    torch.cuda.synchronize()
    spent = []
    for _ in range(times):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SLEEP)
        before.record()
        work()
        after.record()
        after.synchronize()
        spent.append(1e3 * before.elapsed_time(after))
    return statistics.median(spent)


def host_us(work: Work, times: int = 40) -> float:
    """What the program needs, while the device keeps up."""
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    torch.cuda.synchronize()
    return 1e6 * best


def convolutions() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Forms that the calibration models lack: one filter a channel, groups, few channels, transposed, one dimension."""
    for batch, cin, cout, kernel, stride, size, groups in (
        (32, 96, 96, 7, 1, 56, 96),
        (32, 384, 384, 7, 1, 14, 384),
        (64, 32, 32, 3, 1, 112, 32),
        (64, 144, 144, 3, 2, 56, 144),
        (64, 480, 480, 5, 1, 14, 480),
        (32, 216, 216, 3, 1, 28, 9),
        (32, 576, 576, 3, 1, 14, 24),
        (32, 3, 64, 7, 2, 224, 1),
        (32, 3, 96, 4, 4, 224, 1),
        (32, 128, 256, 1, 2, 56, 1),
        (32, 256, 256, 3, 1, 28, 1),
        (8, 128, 128, 3, 1, 32, 1),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(batch, cin, size, size, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(cout, cin // groups, kernel, kernel, device="cuda", dtype=dtype, requires_grad=True)
            run = functools.partial(
                F.conv2d, x, w, stride=stride, padding=kernel // 2 if stride < 4 else 0, groups=groups
            )
            what = {"x": list(x.shape), "w": list(w.shape), "stride": stride, "groups": groups, "dtype": str(dtype)[6:]}
            yield from both("conv", what, run, (x, w))
    for batch, cin, cout, kernel, size in ((64, 128, 64, 4, 32), (64, 256, 128, 4, 16)):
        x = torch.randn(batch, cin, size, size, device="cuda", requires_grad=True)
        w = torch.randn(cin, cout, kernel, kernel, device="cuda", requires_grad=True)
        run = functools.partial(F.conv_transpose2d, x, w, stride=2, padding=1)
        yield from both("conv transposed", {"x": list(x.shape), "w": list(w.shape)}, run, (x, w))


def both(
    name: str, what: dict[str, Any], run: Work, inputs: tuple[Any, ...]
) -> Iterator[tuple[str, dict[str, Any], Work]]:
    """An operator, and its gradients."""
    with torch.no_grad():
        yield name, what, run
    out = run()
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.randn_like(out)
    yield f"{name} backward", what, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def others() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Products of few rows, recurrent layers, norms, tables."""
    for rows, inner, columns in (
        (512, 1024, 1024), (1024, 1024, 1024), (1024, 1024, 4096), (1024, 4096, 1024), (1024, 2048, 5632),
        (128, 1024, 50257), (6304, 768, 768), (6304, 768, 3072), (6272, 768, 3072), (196, 3136, 256),
    ):  # fmt: skip
        for dtype in (torch.float32, torch.bfloat16):
            x, w = (
                torch.randn(rows, inner, device="cuda", dtype=dtype),
                torch.randn(columns, inner, device="cuda", dtype=dtype),
            )
            g = torch.randn(rows, columns, device="cuda", dtype=dtype)
            what = {"m": rows, "n": columns, "k": inner, "dtype": str(dtype)[6:]}
            yield "linear", what, lambda x=x, w=w: x @ w.t()
            yield "linear of the input", what, lambda g=g, w=w: g @ w
            yield "linear of the weight", what, lambda g=g, x=x: g.t() @ x
    for batch, length, width, layers in ((16, 64, 512, 2), (32, 64, 512, 2), (32, 128, 512, 1), (32, 128, 1024, 1)):
        for kind in (nn.LSTM, nn.GRU):
            net = kind(width, width, layers).cuda()
            x = torch.randn(length, batch, width, device="cuda", requires_grad=True)
            what = {"batch": batch, "length": length, "width": width, "layers": layers}
            yield from both(kind.__name__.lower(), what, functools.partial(net, x), (x, *net.parameters()))
    for rows, columns in ((1024, 1024), (8192, 1024), (8192, 4096)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, columns, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.ones(columns, device="cuda", dtype=dtype, requires_grad=True)
            what = {"rows": rows, "columns": columns, "dtype": str(dtype)[6:]}
            yield from both("layer_norm", what, functools.partial(F.layer_norm, x, (columns,), w, w), (x, w))
            yield from both("softmax", what, functools.partial(F.softmax, x, -1), (x,))
            yield from both("gelu", what, functools.partial(F.gelu, x), (x,))
            yield "add", what, lambda x=x: x.detach() + x.detach()
            yield "transposed clone", what, lambda x=x: x.detach().t().contiguous()
    for words, width, tokens in ((50257, 1024, 1024), (50257, 1024, 8192), (32000, 2048, 4096)):
        table = torch.randn(words, width, device="cuda", requires_grad=True)
        ids = torch.randint(0, words, (tokens,), device="cuda")
        yield from both(
            "embedding",
            {"words": words, "width": width, "tokens": tokens},
            functools.partial(F.embedding, ids, table),
            (table,),
        )


class Block(nn.Module):
    """As a layer of a transformer is, so small that only calls cost anything."""

    def __init__(self) -> None:
        """Make its parts."""
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.inner, self.back, self.up, self.down = (
            nn.Linear(32, 96),
            nn.Linear(32, 32),
            nn.Linear(32, 64),
            nn.Linear(64, 32),
        )

    def forward(self, x: Any) -> Any:
        """Attention, and two layers."""
        q, k, v = self.inner(self.norms[0](x)).view(2, 8, 3, 2, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 8, 32)
        x = x + F.dropout(self.back(mixed), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1)


def calls() -> Iterator[tuple[str, dict[str, Any], float]]:
    """What calls cost the program: operators, modules, checkpoints, optimizers."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    x = torch.zeros(16, device="cuda")
    yield "add", {}, host_us(lambda: [x + x for _ in range(200)]) / 200
    kept = {torch.ops.aten.addmm.default}

    def policy(_context: Any, operator: Any, *_arguments: Any, **_named: Any) -> Any:
        return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE

    blocks = [Block().cuda() for _ in range(8)]
    selective = functools.partial(create_selective_checkpoint_contexts, policy)
    ways = {
        "plain": lambda block, h: block(h),
        "checkpoint": lambda block, h: checkpoint(block, h, use_reentrant=False),
        "selective": lambda block, h: checkpoint(block, h, use_reentrant=False, context_fn=selective),
        "autocast": under_autocast,
        "autocast, checkpoint": lambda block, h: under_autocast(
            functools.partial(checkpoint, block, use_reentrant=False), h
        ),
    }
    for name, way in ways.items():
        forward, backward = [], []
        for _ in range(15):
            h = torch.randn(2, 8, 32, device="cuda", requires_grad=True)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for block in blocks:
                h = way(block, h)
            middle = time.perf_counter()
            h.sum().backward()
            backward.append(time.perf_counter() - middle)
            forward.append(middle - begun)
        yield f"block {name} forward", {}, 1e6 * min(forward) / len(blocks)
        yield f"block {name} backward", {}, 1e6 * min(backward) / len(blocks)
    for count in (1, 200):
        parameters = [nn.Parameter(torch.zeros(64, device="cuda")) for _ in range(count)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        for form, flags in (
            ("foreach", {"foreach": True}),
            ("for_loop", {"foreach": False}),
            ("fused", {"fused": True}),
        ):
            optimizer = torch.optim.AdamW(parameters, **flags)
            optimizer.step()
            yield f"AdamW {form}", {"parameters": count}, host_us(optimizer.step, 10)


class Chain(nn.Module):
    """So many small operators in a row, each with so many views behind it."""

    def __init__(self, operators: int, views: int) -> None:
        """Make its one parameter."""
        super().__init__()
        self.operators, self.views = operators, views
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, h: Any) -> Any:
        """Multiply, and look at it again."""
        for _ in range(self.operators):
            h = h * self.weight
            for _ in range(self.views):
                h = h.view(16)
        return h


def chains() -> Iterator[tuple[str, dict[str, Any], float]]:
    """What checkpoints cost by block, by operator and by view: of a chain of operators, one and the other grow."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def again(_context: Any, _operator: Any, *_arguments: Any, **_named: Any) -> Any:
        return CheckpointPolicy.PREFER_RECOMPUTE

    def keep(_context: Any, operator: Any, *_arguments: Any, **_named: Any) -> Any:
        is_kept = operator is torch.ops.aten.mul.Tensor
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    selective = functools.partial(checkpoint, use_reentrant=False)
    ways: dict[str, Callable[[Any, Any], Any]] = {
        "plain": lambda block, h: block(h),
        "checkpoint": functools.partial(checkpoint, use_reentrant=False),
        "checkpoint, no random numbers": functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False),
        "selective, all again": functools.partial(
            selective, context_fn=functools.partial(create_selective_checkpoint_contexts, again)
        ),
        "selective, all kept": functools.partial(
            selective, context_fn=functools.partial(create_selective_checkpoint_contexts, keep)
        ),
        "autocast": under_autocast,
    }
    gradient = torch.ones(16, device="cuda")
    for operators, views in ((4, 0), (16, 0), (64, 0), (16, 2)):
        block = Chain(operators, views).cuda()
        for name, way in ways.items():
            forward, backward = [], []
            for _ in range(40):
                h = torch.ones(16, device="cuda", requires_grad=True)
                torch.cuda.synchronize()
                begun = time.perf_counter()
                out = way(block, h)
                middle = time.perf_counter()
                out.backward(gradient)
                backward.append(time.perf_counter() - middle)
                forward.append(middle - begun)
            what = {"operators": operators, "views": views}
            yield f"chain {name} forward", what, 1e6 * min(forward)
            yield f"chain {name} backward", what, 1e6 * min(backward)


def under_autocast(block: Any, h: Any) -> Any:
    """As programs do that train in 16 bits."""
    with torch.autocast("cuda", torch.bfloat16):
        return block(h)


def tables() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Heads as wide as odd vocabularies, sums of rows of tables, and products of experts."""
    for rows, inner, columns in ((8192, 1024, 50257), (4096, 1024, 30522), (8192, 1024, 50264), (2048, 1022, 4096)):
        x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(columns, inner, device="cuda", dtype=torch.bfloat16)
        g = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        what = {"m": rows, "n": columns, "k": inner, "dtype": "bfloat16"}
        yield "linear", what, lambda x=x, w=w: x @ w.t()
        yield "linear of the input", what, lambda g=g, w=w: g @ w
        yield "linear of the weight", what, lambda g=g, x=x: g.t() @ x
    for words, width, bags, each in ((85000, 64, 8192, 4), (1000, 64, 8192, 4), (85000, 64, 32768, 4)):
        table = torch.randn(words, width, device="cuda", requires_grad=True)
        ids = torch.randint(0, 1000, (bags, each), device="cuda")
        what = {"words": words, "width": width, "bags": bags, "each": each}
        yield from both("embedding_bag", what, functools.partial(F.embedding_bag, ids, table, mode="sum"), (table,))
    for rows, inner, columns, experts in ((4096, 768, 4096, 8), (4096, 2048, 768, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, inner, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(experts, inner, columns, device="cuda", dtype=dtype, requires_grad=True)
            ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (rows // experts)
            what = {"rows": rows, "inner": inner, "columns": columns, "experts": experts, "dtype": str(dtype)[6:]}
            yield from both("grouped_mm", what, functools.partial(torch._grouped_mm, x, w, offs=ends), (x, w))


def steps(until: float) -> Iterator[dict[str, Any]]:
    """Steps of the zoo: its calibration models first, each at all its batches, then the others by turns."""
    import zoo

    first = [(name, batch) for name in zoo.CALIBRATION for batch in sorted(zoo.MODELS[name].batches)]
    rest = [name for name in zoo.MODELS if name not in zoo.CALIBRATION]
    turns = [(name, sorted(zoo.MODELS[name].batches)[turn]) for turn in (1, 0, -1) for name in rest]
    for name, batch in [*first, *turns]:
        if time.monotonic() > until:
            return
        row: dict[str, Any] = {"kind": "step", "model": name, "batch": batch, "setting": "none"}
        try:
            with torch.device("cuda"):
                program = zoo.make_for(name, batch, "none", place=zoo.to_device)()
            spent: list[float] = []
            for turn in range(6):
                torch.cuda.synchronize()
                begun = time.perf_counter()
                zoo.run_step(program)
                torch.cuda.synchronize()
                if turn > 1:
                    spent.append(time.perf_counter() - begun)
            row["step_us"] = round(1e6 * statistics.median(spent))
            del program
        except Exception as error:  # a model that this machine lacks the packages of
            row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        gc.collect()
        torch.cuda.empty_cache()
        yield row


PARTS: dict[str, Callable[[], Iterator[tuple[str, dict[str, Any], Any]]]] = {
    "calls": calls,
    "chains": chains,
    "convolutions": convolutions,
    "others": others,
    "tables": tables,
}
"""What is measured: calls as microseconds of the program, operators as work for the device."""


def main() -> int:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=85.0)
    parser.add_argument("--only", action="append", choices=[*PARTS, "steps"], help="may be repeated; all if left out")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    with open(arguments.out, "a", encoding="utf-8") as out:

        def put(row: dict[str, Any]) -> None:
            out.write(json.dumps(row) + "\n")
            out.flush()

        put({"kind": "about", "device": torch.cuda.get_device_name(), "torch": torch.__version__})
        chosen = arguments.only or [*PARTS, "steps"]
        for part in (part for part in PARTS if part in chosen):
            try:
                for name, what, found in PARTS[part]():
                    if not callable(found):
                        put({"kind": "call", "name": name, **what, "us": round(found, 2)})
                        continue
                    try:
                        put({"kind": "operator", "name": name, **what, "us": round(device_us(found), 2)})
                    except Exception as error:  # a kernel that this device lacks
                        put({"kind": "operator", "name": name, **what, "error": str(error)[:200]})
            except Exception as error:  # an operator whose result its gradient needs
                put({"kind": "operator", "name": part, "error": str(error)[:200]})
        torch.cuda.empty_cache()
        if "steps" in chosen:
            for row in steps(until):
                put(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
