"""A CUDA graph whose weights did not fit: does what its kernels use come to the device, and is the result the same?

    python gpu/shim_graphs.py OUT.json         about two minutes; four programs, one after the other

Each program makes twice as many layers as its graph uses, those of the graph last: within a budget they are the ones that
spill. It is run without gpuheap, with it, within a budget of 70 % of what it needs, and the same while `gpuheap yield`
is called. Prints a line a program: milliseconds a replay in the first and the last fifth, and the sum of the output's
bits, which must be the same in all.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
MIB = 1 << 20
LAYERS, WIDTH, ROWS, REPLAYS = 48, 4096, 64, 400
LIMIT = 100


def work() -> None:
    """One program."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS)]
    used = layers[LAYERS // 2 :]
    rows = torch.randn(ROWS, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward(used, rows)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = forward(used, rows)
    print("ready", flush=True)
    times = []
    for _ in range(REPLAYS):
        begun = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    fifth = REPLAYS // 5
    first, last = sorted(times[:fifth])[fifth // 2], sorted(times[-fifth:])[fifth // 2]
    weights = [int(layer.weight.view(torch.int32).sum(dtype=torch.int64).item()) for layer in layers]
    bits = int(result.view(torch.int32).sum(dtype=torch.int64).item())
    peak = torch.cuda.max_memory_reserved() // MIB
    row = {"first_ms": first * 1e3, "last_ms": last * 1e3, "bits": bits, "weights": sum(weights), "reserved_mib": peak}
    print(json.dumps(row), flush=True)


def forward(layers: list[Any], rows: Any) -> Any:
    """All layers in turn, kept within numbers that floats can hold."""
    for layer in layers:
        rows = layer(rows).tanh()
    return rows


def run(options: list[str] | None, yields: int = 0) -> dict[str, Any]:
    """The program with `gpuheap run` and these options; without it if there are none."""
    gpuheap = shutil.which("gpuheap") or str(Path(sys.executable).parent / "gpuheap")
    command = [sys.executable, str(HERE), "work"]
    if options is not None:
        command = [gpuheap, "run", *options, "--", *command]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(LIMIT, program.kill)
    killer.start()
    found: dict[str, Any] = {}
    assert program.stdout is not None
    for line in program.stdout:
        if line.startswith("ready"):
            for _ in range(yields):
                time.sleep(0.2)
                subprocess.run([gpuheap, "yield", str(program.pid)], capture_output=True, timeout=60)
        elif line.startswith("{"):
            found = json.loads(line)
    found["code"] = program.wait()
    killer.cancel()
    return found


def main() -> None:
    """All four."""
    rows = {"without": run(None), "with": run([])}
    budget = ["--budget", f"{int(rows['without'].get('reserved_mib', 3200) * 0.7)}MiB", "--spill", "auto"]
    rows["spilled"] = run(budget)
    rows["spilled, yields"] = run(budget, yields=3)
    for name, row in rows.items():
        same = all(row.get(key) == rows["without"].get(key) for key in ("bits", "weights"))
        print(
            f"{name:16} {row.get('first_ms', -1):8.2f} {row.get('last_ms', -1):8.2f} ms, same {same}, {row}", flush=True
        )
    Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work()
    else:
        main()
