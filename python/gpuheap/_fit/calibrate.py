"""`python -m gpuheap._fit calibrate`: measures the GPU and the processor that drives it, in a few seconds.

What comes out goes into the file of what is known about that type of device, which plans use from then on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._fit.known_device import is_named, keep, kept
from gpuheap.errors import Error

__all__ = ["main", "measured", "text_of"]

DONE, UNUSABLE = 0, 2
_TIMED = 7
_COPIED = 256 << 20
_CALLS = 400
_EVENT_US = 2.0
"""What CUDA's events count beside the work between them."""


def main(arguments: list[str]) -> int:
    """The command; its exit code: 0 measured, 2 there is no GPU, or another one."""
    parser = argparse.ArgumentParser(
        prog="python -m gpuheap._fit calibrate", description="Measure this machine's GPU for the times of plans."
    )
    parser.add_argument("--device", required=True, metavar="NAME", help="the type of device, as plans name it")
    parser.add_argument("--calibration", required=True, metavar="FILE", help="where what is known about it is kept")
    options = parser.parse_args(arguments)
    try:
        found = measured(options.device, _say)
        path = Path(options.calibration)
        before = kept(path, options.device)
        # Factors that were learnt against other figures are right no more.
        keep(path, {**before, "device": options.device, "time_factor": 1.0, "runs": 0, "measured": found})
    except Error as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return UNUSABLE
    print(text_of(found))
    return DONE


def measured(device: str, say: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Figures of this machine's GPU, by the names that gpuheap's table of devices has.

    Raises:
        Error: there is no GPU, or it is no ``device``.
    """
    try:
        import torch
    except ImportError as error:
        raise Error(f"PyTorch cannot be imported: {error}", "Install it, or name another Python.") from error
    if not torch.cuda.is_available():
        why = "there is no CUDA device" if torch.backends.cuda.is_built() else "this PyTorch was built without CUDA"
        raise Error(
            f"times are calibrated on a GPU, and {why}",
            "Plan without: times then are from gpuheap's table of devices.",
        )
    name = torch.cuda.get_device_name()
    if not is_named(name, device):
        raise Error(
            f"the GPU here is a {name}, and no {device}",
            f'Name it: `gpuheap fit --calibrate --device "{name}"`.',
        )
    say("Measuring products")
    found: dict[str, Any] = {"flops_per_second": _products(torch)}
    say("Measuring memory")
    found["memory_bytes_per_second"] = _bandwidth(torch)
    found["kernel_us"] = _kernel_us(torch)
    say("Measuring the link")
    found["link_bytes_per_second"] = _link(torch)
    say("Measuring calls")
    found["launch_us"] = _launch_us(torch)
    found["multiprocessors"] = torch.cuda.get_device_properties().multi_processor_count
    return found


def _median_us(torch: Any, work: Callable[[], Any], repeat: int = 1) -> float:
    """The time of the work on the device, without that of its launch: the queue is filled before it is timed."""
    work()
    torch.cuda.synchronize()
    spent: list[float] = []
    for _ in range(_TIMED):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device is busy while the program asks for the rest.
        torch.cuda._sleep(400_000)
        before.record()
        for _ in range(repeat):
            work()
        after.record()
        after.synchronize()
        spent.append((1e3 * before.elapsed_time(after) - _EVENT_US) / repeat)
    return max(statistics.median(spent), 1e-3)


def _products(torch: Any) -> dict[str, float]:
    """Operations a second of large square products."""
    rates: dict[str, float] = {}
    kinds = [("float32", torch.float32, False), ("tf32", torch.float32, True), ("float16", torch.float16, False)]
    if torch.cuda.is_bf16_supported(including_emulation=False):
        kinds.append(("bfloat16", torch.bfloat16, False))
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, dtype, tf32 in kinds:
            if name == "tf32" and torch.cuda.get_device_capability() < (8, 0):
                continue
            torch.backends.cuda.matmul.allow_tf32 = tf32
            rates[name] = max(_rate(torch, dtype, size) for size in (4096, 8192) if _fits(torch, size))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return rates


def _fits(torch: Any, size: int) -> bool:
    return bool(size <= 4096 or torch.cuda.mem_get_info()[0] > 16 * size * size)


def _rate(torch: Any, dtype: Any, size: int) -> float:
    a = torch.randn(size, size, device="cuda", dtype=dtype)
    out = torch.empty_like(a)
    return float(2.0 * size**3 / _median_us(torch, lambda: torch.mm(a, a, out=out)) * 1e6)


def _bandwidth(torch: Any) -> float:
    """Bytes a second of a copy that is longer than the cache."""
    size = min(2 << 30, int(torch.cuda.mem_get_info()[0]) // 8)
    one = torch.empty(size // 4, device="cuda")
    other = torch.empty_like(one)
    return float(2.0 * one.nbytes / _median_us(torch, lambda: other.copy_(one)) * 1e6)


def _kernel_us(torch: Any) -> float:
    """A kernel with next to no work, among others of its kind."""
    x = torch.zeros(256, device="cuda")
    return _median_us(torch, lambda: x.add_(1), repeat=20)


def _link(torch: Any) -> float:
    """Bytes a second over the link, the slower of both ways, from and to pinned memory."""
    there = torch.empty(_COPIED, dtype=torch.uint8, device="cuda")
    here = torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True)
    ways = (lambda: there.copy_(here, non_blocking=True), lambda: here.copy_(there, non_blocking=True))
    return float(_COPIED / max(_median_us(torch, way) for way in ways) * 1e6)


def _launch_us(torch: Any) -> float:
    """What a call of `torch.add` costs the program, while the device keeps up."""
    x = torch.zeros(16, device="cuda")
    best = float("inf")
    for _ in range(_TIMED):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            x.add(x)
        best = min(best, (time.perf_counter() - begun) / _CALLS)
    torch.cuda.synchronize()
    return 1e6 * best


def text_of(found: Mapping[str, Any]) -> str:
    """What was measured, as a small table."""
    rows = [(f"products, {name}", f"{rate / 1e12:.1f} TFLOP/s") for name, rate in found["flops_per_second"].items()]
    rows.append(("memory", f"{bytes_text(int(found['memory_bytes_per_second']))}/s"))
    rows.append(("link to the host", f"{bytes_text(int(found['link_bytes_per_second']))}/s"))
    rows.append(("a small kernel", f"{found['kernel_us']:.1f} us"))
    rows.append(("a call of an operator", f"{found['launch_us']:.1f} us"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value:>14}" for name, value in rows)


def _say(what: str) -> None:
    print(f"progress: {what}", file=sys.stderr, flush=True)
