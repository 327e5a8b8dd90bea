"""What a snapshot does not say: all memory of the devices, whoever has it, and the versions of what runs."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from typing import Any, NamedTuple

from gpuheap import _nvml
from gpuheap._record.labels import plain

__all__ = ["Driver", "Memory", "facts"]

MOST = 20_000
"""Answers that are kept; of more, every other one is dropped."""

MOST_BYTES = 1 << 46
"""More than any device has. Drivers that cannot tell say the largest number that there is."""


class Memory(NamedTuple):
    """All memory of a device at one time, in bytes."""

    device: int
    time_us: int
    total: int
    free: int
    reserved: int
    """Of PyTorch's allocator."""
    own: int | None
    """All that this process holds, where NVML tells."""
    others: int | None
    """What other processes hold, where NVML tells."""


class Driver:
    """Asks CUDA and NVML for the devices that PyTorch uses, and keeps the answers."""

    def __init__(self, torch: Any) -> None:
        """Asks nothing yet."""
        self._torch = torch
        self._uuids: dict[int, str | None] = {}
        self.memory: list[Memory] = []

    def ask(self, *, processes: bool = True) -> None:
        """Ask now. ``processes`` also asks who holds what, which takes from ten microseconds to some milliseconds.

        Without it only NVML is asked, which disturbs no stream: any thread may ask at any time.
        """
        torch = self._torch
        if not torch.cuda.is_initialized():
            return
        seen = {one.uuid: one for one in _nvml.devices() or ()}
        for device in range(torch.cuda.device_count()):
            reserved = int(torch.cuda.memory_reserved(device))
            if reserved == 0:
                continue
            nvml = seen.get(self._uuid(device))
            now = time.time_ns() // 1000
            own = others = None
            if nvml is not None and nvml.free is not None and nvml.total is not None:
                total, free = nvml.total, nvml.free
            elif processes:
                free, total = torch.cuda.mem_get_info(device)
            else:
                continue
            if nvml is not None and processes:
                own, others = _held(nvml)
            if not (_is_amount(reserved) and _is_amount(total) and _is_amount(free) and free <= total):
                continue
            own, others = (bytes_ if _is_amount(bytes_) else None for bytes_ in (own, others))
            self.memory.append(Memory(device, now, total, free, reserved, own, others))
        if len(self.memory) > MOST:
            del self.memory[1::2]

    def _uuid(self, device: int) -> str | None:
        if device not in self._uuids:
            uuid = getattr(self._torch.cuda.get_device_properties(device), "uuid", None)
            self._uuids[device] = None if uuid is None else f"GPU-{uuid}"
        return self._uuids[device]


def _is_amount(bytes_: object) -> bool:
    return isinstance(bytes_, int) and 0 <= bytes_ <= MOST_BYTES


def _held(device: _nvml.Device) -> tuple[int | None, int | None]:
    """What this process and what others hold; None where NVML does not tell."""
    processes = _nvml.processes(device)
    if processes is None:
        return None, None
    own = [process.bytes for process in processes if process.own]
    rest = [process.bytes for process in processes if not process.own]
    if not own or None in own:
        # In a container, processes have other numbers outside: ours is among the rest.
        return None, None
    return sum(bytes_ or 0 for bytes_ in own), None if None in rest else sum(bytes_ or 0 for bytes_ in rest)


def facts(torch: Any) -> list[tuple[str, str]]:
    """Versions of what runs, and where. Nothing that tells whose program it is."""
    from gpuheap import __version__

    version = torch.version
    found = [
        ("PyTorch", str(torch.__version__)),
        ("CUDA", getattr(version, "cuda", None)),
        ("ROCm", getattr(version, "hip", None)),
        ("driver", _nvml.driver_version()),
        ("Python", platform.python_version()),
        ("gpuheap", __version__),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("rank", os.environ.get("RANK")),
        ("world size", os.environ.get("WORLD_SIZE")),
    ]
    with contextlib.suppress(Exception):
        names = [torch.cuda.get_device_name(device) for device in _in_use(torch)]
        found.append(("GPU", ", ".join(dict.fromkeys(names))))
    frameworks = ("transformers", "lightning", "accelerate", "deepspeed", "vllm", "jax", "cupy", "tensorflow")
    found += [(name, getattr(sys.modules.get(name), "__version__", None)) for name in frameworks]
    return [(name, plain(str(value))) for name, value in found if value]


def _in_use(torch: Any) -> range:
    # Asking for the name of a device would start CUDA.
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
