"""How batches come to the device, and what stays of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.operations import Transfer
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Stack
from gpuheap._doctor.timeline import Timeline
from gpuheap._doctor.within import tensors_within
from gpuheap._objects import is_instance
from gpuheap._tensors import storages_of
from gpuheap.holders import holders

__all__ = ["Loader", "batches_kept", "pageable_copies", "prefetched", "slow_loader", "transfers_in_loader"]

_SMALL = 1 << 20
_WAIT_SHARE = 0.2
_HOST_SHARE = 0.1
_SECONDS = 20.0


@dataclass
class Loader:
    """The user's loader: iterated over and over, each `next` timed."""

    torch: Any
    source: Any
    waits: list[float] = field(default_factory=list)
    """Seconds in `next`, without the first, which starts the workers."""
    batch_bytes: int = 0
    """Of the largest batch."""
    _iterator: Iterator[Any] | None = None
    _fresh: bool = True

    def next(self) -> Any:
        """The next batch; from the beginning when the loader has ended.

        Raises:
            StopIteration: there is not a single batch.
        """
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.source)
                self._fresh = True
            started = time.perf_counter()
            try:
                batch = next(self._iterator)
            except StopIteration:
                exhausted = self._iterator is self.source
                self._iterator = None
                if exhausted:
                    break
                continue
            if not self._fresh:
                self.waits.append(time.perf_counter() - started)
            self._fresh = False
            self.batch_bytes = max(self.batch_bytes, batch_bytes(self.torch, batch))
            return batch
        raise StopIteration

    def close(self) -> None:
        """Lets the workers go."""
        self._iterator = None

    @property
    def workers(self) -> int | None:
        """`num_workers`, if it is a `DataLoader`."""
        return int(self.source.num_workers) if self._is_loader else None

    @property
    def ahead(self) -> int:
        """How many batches the workers prepare ahead."""
        return (
            int(self.workers or 0) * int(getattr(self.source, "prefetch_factor", None) or 0) if self._is_loader else 0
        )

    @property
    def _is_loader(self) -> bool:
        return is_instance(self.source, self.torch.utils.data.DataLoader)


def batch_bytes(torch: Any, batch: Any) -> int:
    """What the tensors of a batch need, each storage once."""
    return sum(
        {one.key: one.bytes for tensor in tensors_within(torch, batch) for one in storages_of(torch, tensor)}.values()
    )


def _places(stacks: Sequence[Stack]) -> Stack:
    counts = Counter(stack for stack in stacks if stack.sites)
    return counts.most_common(1)[0][0] if counts else Stack(())


def pageable_copies(transfers: Sequence[Transfer], steps: int) -> list[Finding]:
    """Copies to the device from host memory that is not pinned."""
    pageable = [one for one in transfers if not one.pinned]
    taken = sum(one.bytes for one in pageable)
    if not steps or taken // steps < _SMALL:
        return []
    useless = sum(1 for one in pageable if one.non_blocking)
    stack = _places([one.stack for one in pageable])
    evidence = [f"{len(pageable)} copies of {bytes_text(taken)} in {steps} steps came from pageable host memory"]
    if useless:
        evidence.append(f"{useless} of them with `non_blocking=True`, which does nothing without pinned memory")
    return [
        Finding(
            kind="pageable_copies",
            title=f"{bytes_text(taken // steps)} per step are copied to the device from memory that is not pinned",
            bytes=taken // steps,
            site=stack.sites[0] if stack.sites else None,
            evidence=tuple(evidence),
            remedy="Give the `DataLoader` `pin_memory=True` and copy with `.to(device, non_blocking=True)`, or let "
            "`gpuheap.prefetch(loader, device)` do both.",
        )
    ]


def transfers_in_loader(transfers: Sequence[Transfer], steps: int) -> list[Finding]:
    """Tensors that are moved to the device one by one while the batch is made."""
    inside = [one for one in transfers if one.in_loader]
    if not steps or len(inside) < 2 * steps:
        return []
    stack = _places([one.stack for one in inside])
    return [
        Finding(
            kind="device_tensors_in_dataset",
            title=f"the data set moves each sample to the device by itself: {len(inside) / steps:.0f} copies per batch",
            bytes=sum(one.bytes for one in inside) // steps,
            site=stack.sites[0] if stack.sites else None,
            evidence=(f"{len(inside)} copies of {bytes_text(sum(one.bytes for one in inside))} in {steps} batches",),
            remedy="Return CPU tensors from the data set and move the whole batch in the step; with workers each "
            "process "
            "would make a CUDA context of its own.",
        )
    ]


def slow_loader(
    waits: Sequence[float], step_seconds: Sequence[float], workers: int | None, on_device: bool
) -> list[Finding]:
    """Steps that wait for a loader without workers.

    Args:
        waits: seconds in `next(loader)`.
        step_seconds: seconds of the steps, without that.
        workers: `num_workers`; None for what is no `DataLoader`.
        on_device: whether the model is on an accelerator. On the CPU workers would take the model's cores.
    """
    total = sum(waits) + sum(step_seconds)
    if workers != 0 or not on_device or not waits or not total or sum(waits) < _WAIT_SHARE * total:
        return []
    return [
        Finding(
            kind="slow_loader",
            title=f"{100 * sum(waits) / total:.0f} % of the time goes by in `next(loader)`, and the loader has no "
            "workers",
            evidence=(f"{sum(waits):.3f} s in `next`, {sum(step_seconds):.3f} s in the steps",),
            remedy="Give the `DataLoader` workers (`num_workers=4`, `persistent_workers=True`), or prepare batches "
            "ahead with "
            "`gpuheap.prefetch(loader, device)`.",
            confidence="medium",
        )
    ]


def prefetched(ahead: int, size: int, host_bytes: int | None = None) -> list[Finding]:
    """Batches that workers keep ready in host memory."""
    if host_bytes is None:
        host_bytes = _host_bytes()
    taken = ahead * size
    if not taken or not host_bytes or taken < _HOST_SHARE * host_bytes:
        return []
    return [
        Finding(
            kind="prefetched_batches",
            title=f"the loader's workers keep {ahead} batches ready: {bytes_text(taken)} of host memory",
            bytes=taken,
            evidence=(f"a batch has {bytes_text(size)}; the host has {bytes_text(host_bytes)}",),
            remedy="Lower `prefetch_factor` or `num_workers`; pinned memory is never swapped out.",
        )
    ]


def _host_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def batches_kept(torch: Any, timeline: Timeline, kept: set[int], deadline: float) -> list[Finding]:
    """Batches of the loader that are still alive when their step is over, without piling up."""
    alive = [one for key, one in timeline.alive.items() if one.batch and key not in kept and key not in timeline.owned]
    if not alive:
        return []
    largest = max(alive, key=lambda one: one.storage.bytes)
    held = []
    if largest.storage.address and time.monotonic() < deadline:
        held = list(holders(largest.storage.address, limit=3, budget=_SECONDS))
    known = [holder for holder in held if holder.root != "unseen"]
    # A suspended generator has its last value by nature.
    real = [holder for holder in known if holder.kind not in ("generator", "cycle")]
    if not real:
        return []
    taken = sum(one.storage.bytes for one in alive)
    return [
        Finding(
            kind="batch_kept",
            title=f"the batch of a step is still held when the step is over: {bytes_text(taken)}",
            bytes=taken,
            site=next((one.stack.sites[0] for one in alive if one.stack.sites), None),
            holders=tuple(holder.path for holder in real),
            evidence=("while the next step runs, two batches are alive",),
            remedy="Drop it at the end of the step (`del batch`, or set the attribute to None); keep "
            "`.detach().cpu()` of "
            "what is needed later.",
            confidence="medium",
        )
    ]
