"""What a process takes of a GPU beside what PyTorch's allocator reserves, program by program.

    PYTHONPATH=python python gpu/fit_context.py OUT.jsonl [--minutes 1.2] [--only NAME,...]

Each program runs two steps in a process of its own, as `gpuheap fit --verify` runs a plan, with nothing else on the
GPU: what the driver says is in use then, without what was in use before and without what the allocator holds. The
driver keeps memory for the code of every kernel that was loaded, for the stacks of the kernel with the largest, and
for each stream and library handle; so programs differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fit_device import Clock, Lines, reason

Variant = tuple[str, int, list[dict[str, Any]], str]
CHECKPOINTED = {"lever": "checkpoint", "modules": ["layer1.0", "layer1.1", "layer2.1"]}
OFFLOADED = {"lever": "offload_optimizer"}
EXPANDABLE = "expandable_segments:True"

VARIANTS: dict[str, Variant] = {
    # Model of the zoo, batch, levers, settings of the allocator. The last of resnet18 is the plan of docs/results.
    "resnet18": ("resnet18", 64, [], ""),
    "resnet18 expandable": ("resnet18", 64, [], EXPANDABLE),
    "resnet18 plan": ("resnet18", 64, [OFFLOADED, CHECKPOINTED], EXPANDABLE),
    "resnet18 offloaded": ("resnet18", 64, [OFFLOADED], ""),
    "gpt2 autocast": ("gpt2", 4, [{"lever": "autocast", "dtype": "bfloat16"}], ""),
    "bert_base": ("bert_base", 16, [], ""),
    "mlp": ("mlp", 256, [], ""),
    "resnet18 compiled": ("resnet18", 64, [{"lever": "compile", "activation_memory_budget": 1.0}], ""),
    "lstm": ("lstm", 16, [], ""),
}


def child(name: str) -> int:
    import zoo
    from gpuheap._fit.measure import measure

    model, size, levers, _ = VARIANTS[name]
    real = measure(zoo.make_for(model, size), levers, warm_steps=2, timed_steps=0, build_there=True)
    print(json.dumps({"context_bytes": real.context_bytes, "reserved_bytes": real.reserved_bytes}))
    return 0


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=1.2)
    parser.add_argument("--only", default="", help=f"of: {', '.join(VARIANTS)}")
    arguments = parser.parse_args()
    clock, lines = Clock(arguments.minutes), Lines(arguments.out)
    failures = 0
    for name in arguments.only.split(",") if arguments.only else VARIANTS:
        if clock.left() < 6:
            break
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": VARIANTS[name][3]}
        command = [sys.executable, "-W", "ignore", __file__, "--child", name]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=clock.left(), check=False
            )
            row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-300:]}
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            row = {"error": reason(error)}
        failures += "error" in row
        lines.put(name=name, seconds=round(time.monotonic() - begun, 1), **row)
        print(name, row, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
