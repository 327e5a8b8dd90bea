"""What the scripts about plans share: runs of the zoo's models under levers, one after the other, and their rows."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import zoo

from gpuheap._fit.measure import measure, used_bytes
from gpuheap.errors import Error

GIB = 1 << 30
CUDA = torch.cuda.is_available()
Levers = list[dict[str, Any]]


class Context:
    """What this process takes of the device beside the allocator: the context, and libraries as they are loaded."""

    before = used_bytes() if CUDA else 0
    """What was in use before this process asked the device for anything."""

    @classmethod
    def now(cls) -> int:
        """Bytes, by the driver's account; right if nothing else began or ended on the device."""
        return max(used_bytes() - cls.before - torch.cuda.memory_reserved(), 0) if CUDA else 0


def make_of(model: str, batch: int, *, frozen: bool = False) -> Callable[[], Any]:
    """The zoo's program of a model at a batch size; with ``frozen`` for evaluation."""
    made = zoo.make_for(model, batch)
    if not frozen:
        return made

    def make() -> Any:
        net, _, loss, data = made()
        return net.eval().requires_grad_(False), None, loss, data

    return make


def blocks_of(model: str) -> list[str]:
    """The names of the model's blocks."""
    spec = zoo.MODELS[model]
    assert spec.blocks is not None
    with torch.device("meta"):
        return list(spec.blocks(spec.build()))


def fresh() -> None:
    """As near to a new process as one gets inside an old one."""
    gc.collect()
    torch._dynamo.reset()
    torch._functorch.config.activation_memory_budget = 1.0
    if CUDA:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run(
    make: Callable[[], Any], levers: Sequence[dict[str, Any]], *, steps: int = 5, seconds: float = 6.0
) -> dict[str, Any]:
    """One run: what it took, or why it could not be."""
    fresh()
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    begun = time.perf_counter()
    try:
        real = measure(make, levers, timed_steps=steps, most_seconds=seconds, build_there=True).as_json()
    except Error as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    # Of this run alone only what it added can be seen.
    real["context_bytes"] = Context.now()
    real["device_bytes"] = real["reserved_bytes"] + real["context_bytes"]
    real["seconds"] = time.perf_counter() - begun
    return real


def write(row: dict[str, Any], out: Path) -> None:
    """A row into the file at once, and a line of it for who watches."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    real = row.get("real", row)
    text = real.get("error") or real.get("out_of_memory")
    if text is None:
        text = (
            f"allocated {real['allocated_bytes'] / GIB:6.2f}  device {real['device_bytes'] / GIB:6.2f} GiB  "
            f"step {real['step_us'] / 1e3:8.1f} ms"
        )
    print(f"{row['model']:<14} {row['name']:<44} {text}", flush=True)
