"""How a program with a plan is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["VARIABLE", "counted_bytes", "start_line"]

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


def counted_bytes(found: Mapping[str, Any]) -> int:
    """Of a plan's budget what `gpuheap run` is told: it does not count contexts and libraries. 0 without a budget."""
    peak = found.get("peak") or {}
    beside = int(peak.get("device_bytes", 0)) - int(peak.get("reserved_bytes", 0))
    return max(int(found.get("budget_bytes") or 0) - max(beside, 0), 0)


def start_line(levers: Sequence[Mapping[str, Any]], program: str, budget_bytes: int = 0) -> str:
    """The line to type: variables first, then `gpuheap run` if memory spills, then Python or torchrun."""
    by_name = {str(lever.get("lever")): lever for lever in levers}
    words: list[str] = []
    if "allocator" in by_name:
        words.append(f"{VARIABLE}={shlex.quote(str(by_name['allocator'].get('conf', '')))}")
    if "spill" in by_name:
        words += ["gpuheap", "run"]
        words += ["--budget", str(budget_bytes)] if budget_bytes else []
        words += ["--spill", str(int(by_name["spill"].get("bytes", 0))), "--"]
    gpus = int(by_name["shard"].get("gpus", 2)) if "shard" in by_name else 1
    words += ["torchrun", "--standalone", f"--nproc-per-node={gpus}"] if gpus > 1 else ["python"]
    return " ".join([*words, program])
