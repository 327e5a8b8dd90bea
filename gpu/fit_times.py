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
from fit_operators import Work, convolutions, others, pictures, tables
from torch import nn

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
    "pictures": pictures,
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
