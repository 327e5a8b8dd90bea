"""What a scope says of memory that has survived it: the report, the warning and the errors."""

from __future__ import annotations

import sys
import time
import types
import warnings
from dataclasses import dataclass
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._frames import is_own_code, short_file
from gpuheap._tensors import Storage
from gpuheap.errors import Error
from gpuheap.holders import holders

__all__ = [
    "BudgetExceeded",
    "LeakError",
    "LeakReport",
    "LeakWarning",
    "Survivor",
    "history_sites",
    "warn",
    "with_holders",
]

_SHOWN = 5
_HOLDERS_EACH = 2
_SITE_UNKNOWN = "site not known: `track=True`, or PyTorch's allocation history, tells it"


@dataclass(frozen=True, slots=True)
class Survivor:
    """A storage that was allocated in a scope and is alive after it."""

    tensor: str
    """`Tensor[1024, 1024] float32 on cuda:0`; `no tensor in Python` if autograd or C++ code alone keeps it."""
    bytes: int
    """How much memory that is."""
    group: str
    """Its class: `parameters`, `gradients`, `optimizer state`, `buffers`, `activations` or `other tensors`."""
    site: str | None
    """Where it was allocated, `train.py:42 (step)`, if that is known."""
    holders: tuple[str, ...]
    """Who keeps it, as `gpuheap.holders` says it. Only the largest survivors are asked about."""


@dataclass(frozen=True, slots=True)
class LeakReport:
    """What a scope found at its end."""

    name: str
    """The scope's name."""
    survivors: tuple[Survivor, ...]
    """What is still alive and was neither kept nor allowed, the largest first."""
    bytes: int
    """Their bytes."""
    collected_bytes: int
    """What was only freed by the collection of reference cycles at the end: no leak, but it stays until Python
    collects."""

    def text(self) -> str:
        """The report as text, without a line break at its end."""
        count = len(self.survivors)
        what = "1 storage" if count == 1 else f"{count} storages"
        still = "is" if count == 1 else "are"
        lines = [f"scope `{self.name}`: {what} of {bytes_text(self.bytes)} allocated inside {still} alive at its end"]
        for one in self.survivors[:_SHOWN]:
            site = f"allocated at {one.site}" if one.site else _SITE_UNKNOWN
            lines.append(f"  {one.tensor}, {bytes_text(one.bytes)} ({one.group}), {site}")
            lines += [f"    held by {holder}" for holder in one.holders]
        if count > _SHOWN:
            lines.append(f"  and {count - _SHOWN} more")
        if self.collected_bytes:
            lines.append(f"  {bytes_text(self.collected_bytes)} more were freed by collecting reference cycles")
        return "\n".join(lines)

    def __str__(self) -> str:
        """The report."""
        return self.text()


class LeakWarning(UserWarning):
    """Memory that was allocated in a scope is alive after it. `report` has the details."""

    report: LeakReport

    def __init__(self, report: LeakReport) -> None:
        """Made at the end of a scope."""
        super().__init__(report.text())
        self.report = report


class LeakError(Error):
    """The same as an exception, for `on_leak="raise"`."""

    report: LeakReport

    def __init__(self, report: LeakReport) -> None:
        """Made at the end of a scope."""
        super().__init__(report.text())
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions travel between processes."""
        return type(self), (self.report,)


class BudgetExceeded(Error):
    """A scope has allocated more than its budget."""

    name: str
    budget: int
    allocated: int

    def __init__(self, name: str, budget: int, allocated: int) -> None:
        """Made by the operation that passed the budget."""
        super().__init__(
            f"scope `{name}`: {bytes_text(allocated)} allocated, over its budget of {bytes_text(budget)}",
            hint="the operation that raised this had its memory already; `gpuheap.release()` after the `except` block "
            "gives back what is no longer used",
        )
        self.name = name
        self.budget = budget
        self.allocated = allocated

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions travel between processes."""
        return type(self), (self.name, self.budget, self.allocated)


def warn(warning: LeakWarning, code: types.CodeType | None) -> None:
    """Warns at the caller's line; of a coroutine, which an event loop calls, where it is defined."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and is_own_code(frame.f_code):
        frame = frame.f_back
    if code is not None:
        warnings.warn_explicit(warning, LeakWarning, code.co_filename, code.co_firstlineno)
    elif frame is not None:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        module = frame.f_globals.get("__name__", "?")
        warnings.warn_explicit(warning, LeakWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)
    else:
        warnings.warn(warning, stacklevel=2)


def with_holders(survivor: Survivor, storage: Storage | None, deadline: float) -> Survivor:
    left = deadline - time.monotonic()
    if storage is None or not storage.address or left <= 0:
        return survivor
    try:
        paths = tuple(holder.path for holder in holders(storage.address, limit=_HOLDERS_EACH, budget=left))
    except Exception:  # the report is worth more than the names in it
        return survivor
    return Survivor(survivor.tensor, survivor.bytes, survivor.group, survivor.site, paths[:_HOLDERS_EACH])


def history_sites(torch: Any, storages: list[Storage]) -> dict[int, str]:
    """Sites by address, out of PyTorch's allocation history if it is on."""
    wanted = {storage.address for storage in storages if storage.device.startswith("cuda")}
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if not wanted or enabled is None or not enabled():
        return {}
    sites: dict[int, str] = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block.get("address") in wanted:
                for frame in block.get("frames", ()):
                    if "site-packages" not in frame["filename"] and frame["filename"] != "??":
                        sites[block["address"]] = f"{short_file(frame['filename'])}:{frame['line']} ({frame['name']})"
                        break
    return sites
