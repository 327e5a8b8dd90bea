"""How busy a GPU is kept by several ways to bring batches to it, and how much memory each takes.

    PYTHONPATH=python python gpu/prefetch.py [OUT.json]

Prints a line a way as it is measured, a table at the end, and writes the rows to OUT.json. Under 90 seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import gpuheap

IMAGES, IMAGE = 128, (3, 224, 224)
STEPS, WARM_STEPS, RUNS = 50, 10, 2
WORKERS = 4
LIMIT_S = 75.0
"""No way is begun after this time."""


def batch_shape() -> tuple[int, ...]:
    """A usual batch of images; a smaller one where the memory that workers share has no room for it."""
    images = IMAGES
    try:
        room = os.statvfs("/dev/shm")
        # Each worker has two batches ready, and one is on its way.
        most = room.f_bavail * room.f_frsize // (3 * WORKERS) // (torch.Size(IMAGE).numel() * 4)
        images = max(1, min(IMAGES, most))
    except OSError:
        pass
    return (images, *IMAGE)


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Whole batches, so that loading costs a copy."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return torch.full(self.shape, float(index % 7)), torch.full((self.shape[0],), index)


def plain(batches: Iterable[Any]) -> Iterator[Any]:
    for image, label in batches:
        yield image.cuda(), label.cuda()


def not_blocking(batches: Iterable[Any]) -> Iterator[Any]:
    for image, label in batches:
        yield image.cuda(non_blocking=True), label.cuda(non_blocking=True)


def usual(batches: Iterable[Any]) -> Iterator[Any]:
    """The prefetcher that many programs have: one batch ahead on a side stream, `record_stream`."""
    side, ahead = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(side):
            moved = [tensor.cuda(non_blocking=True) for tensor in batch]
        if ahead is not None:
            yield ahead
        torch.cuda.current_stream().wait_stream(side)
        for tensor in moved:
            tensor.record_stream(torch.cuda.current_stream())
        ahead = moved
    yield ahead


def measure(make: Callable[[], Iterable[Any]], step: Callable[[Any], Any], batch_bytes: int) -> dict[str, float]:
    """The faster of some runs, and the most batches that were on the device in any of them."""
    seconds, peak = [], 0
    for _ in range(RUNS):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start = 0.0
        for index, (image, _label) in enumerate(make()):
            if index == WARM_STEPS:
                # The workers have started.
                torch.cuda.synchronize()
                start = time.perf_counter()
            step(image)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / (STEPS - WARM_STEPS))
        peak = max(peak, torch.cuda.max_memory_allocated() - before)
        del image, _label
    return {"step_ms": min(seconds) * 1e3, "batches": peak / batch_bytes}


def main() -> int:
    out = sys.argv[1] if len(sys.argv) > 1 else None
    began = time.monotonic()
    shape = batch_shape()
    batch_bytes = torch.Size(shape).numel() * 4
    weights = torch.rand(4096, 4096, device="cuda")
    product = torch.empty_like(weights)

    def step(image: Any) -> Any:
        total = image.sum()
        for _ in range(10):
            torch.mm(weights, weights, out=product)
        return total

    def loader(*, pin: bool) -> Iterable[Any]:
        return torch.utils.data.DataLoader(Images(shape), batch_size=None, num_workers=WORKERS, pin_memory=pin)

    def resident() -> Iterable[Any]:
        image = torch.ones(shape, device="cuda")
        return ((image, 0) for _ in range(STEPS))

    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "no loading (the floor)": resident,
        "DataLoader, pageable": lambda: plain(loader(pin=False)),
        "DataLoader, pinned, non_blocking": lambda: not_blocking(loader(pin=True)),
        "usual prefetcher, pinned": lambda: usual(loader(pin=True)),
        "gpuheap.prefetch, pageable": lambda: gpuheap.prefetch(loader(pin=False), "cuda"),
        "gpuheap.prefetch, pinned": lambda: gpuheap.prefetch(loader(pin=True), "cuda"),
        "gpuheap.prefetch, pageable, depth 3": lambda: gpuheap.prefetch(loader(pin=False), "cuda", 3),
    }
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch_bytes": batch_bytes,
        "workers": WORKERS,
    }
    print(f"batch {batch_bytes / 2**20:.1f} MiB, {about['device']}, PyTorch {about['torch']}, {WORKERS} workers")
    rows: list[dict[str, Any]] = []
    for name, make in ways.items():
        if time.monotonic() - began > LIMIT_S:
            rows.append({"way": name, "failed": "not run: the time is up"})
        else:
            try:
                rows.append({"way": name, **measure(make, step, batch_bytes)})
            except Exception as error:  # the others are worth measuring
                rows.append({"way": name, "failed": f"{type(error).__name__}: {error}"})
        print(line(rows[-1]), flush=True)
    if out is not None:
        with open(out, "w", encoding="utf-8") as file:
            json.dump({"about": about, "seconds": time.monotonic() - began, "rows": rows}, file, indent=1)
    print(
        f"\n{time.monotonic() - began:.0f} s\n\n| way | a step | batches on the device, at most |\n| --- | --- | --- |"
    )
    for row in rows:
        print(f"| {' | '.join(cells(row))} |")
    return 1 if any("failed" in row for row in rows) else 0


def cells(row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["way"], row["failed"], ""]
    return [row["way"], f"{row['step_ms']:.2f} ms", f"{row['batches']:.2f}"]


def line(row: dict[str, Any]) -> str:
    name, spent, batches = cells(row)
    return f"{name:<36} {spent:>12}  {batches:>6}"


if __name__ == "__main__":
    sys.exit(main())
