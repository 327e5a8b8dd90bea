"""How busy a GPU is kept by several ways to bring batches to it, and how much memory each takes. Prints a table.

python prefetch_speed.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import gpuheap

SHAPE = (128, 3, 224, 224)
STEPS = 60


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Whole batches, so that loading costs a copy."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return torch.full(SHAPE, float(index % 7)), torch.full((SHAPE[0],), index)


def loader(*, pin: bool, workers: int) -> Iterable[Any]:
    return torch.utils.data.DataLoader(Images(), batch_size=None, num_workers=workers, pin_memory=pin)


def plain(batches: Iterable[Any]) -> Iterator[Any]:
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


def main() -> None:
    weights = torch.rand(4096, 4096, device="cuda")
    out = torch.empty_like(weights)

    def step(image: Any) -> Any:
        total = image.sum()
        for _ in range(10):
            torch.mm(weights, weights, out=out)
        return total

    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "no loading": lambda: [(torch.ones(SHAPE, device="cuda"), 0)] * STEPS,
        "DataLoader, pageable": lambda: plain(loader(pin=False, workers=4)),
        "DataLoader, pinned": lambda: plain(loader(pin=True, workers=4)),
        "usual prefetcher, pinned": lambda: usual(loader(pin=True, workers=4)),
        "gpuheap.prefetch, pinned": lambda: gpuheap.prefetch(loader(pin=True, workers=4), "cuda"),
        "gpuheap.prefetch, pageable": lambda: gpuheap.prefetch(loader(pin=False, workers=4), "cuda"),
        "gpuheap.prefetch, pageable, depth 3": lambda: gpuheap.prefetch(loader(pin=False, workers=4), "cuda", 3),
    }
    batch_bytes = torch.Size(SHAPE).numel() * 4
    print(f"batch {batch_bytes / 2**20:.1f} MiB, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for name, make in ways.items():
        seconds, peak = [], 0
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            start = None
            for index, (image, _label) in enumerate(make()):
                if index == 10:
                    # The workers have started.
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                step(image)
            torch.cuda.synchronize()
            assert start is not None
            seconds.append((time.perf_counter() - start) / (STEPS - 10))
            peak = torch.cuda.max_memory_allocated() - before
            del image, _label
        print(f"{name:<36} {min(seconds) * 1e3:7.2f} ms a step   {peak / batch_bytes:5.2f} batches at most", flush=True)


if __name__ == "__main__":
    main()
