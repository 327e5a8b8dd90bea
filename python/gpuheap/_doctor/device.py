"""What the counters of the allocator say beyond the tensors: reserved memory, and memory that Python does not see."""

from __future__ import annotations

from collections.abc import Sequence

from gpuheap._bytes import bytes_text, signed_bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.trend import Window, rises, slope

__all__ = ["find"]

_RESERVED_SHARE = 0.05
_WASTE_SHARE = 0.3
_UNSEEN = 1 << 20


def find(counters: Sequence[tuple[int, int]], levels: Sequence[int], explained: float) -> list[Finding]:
    """Judges the counters at the steps' ends.

    Args:
        counters: allocated and reserved bytes.
        levels: bytes of the live tensors that Python knows of.
        explained: bytes per step that other findings are about.
    """
    window = Window(len(counters))
    if not window.enough:
        return []
    allocated = [one for one, _ in counters]
    reserved = [one for _, one in counters]
    found = []
    rate = slope([taken - known for taken, known in zip(allocated, levels, strict=False)][window.first :])
    if (
        rises(window, [taken - known for taken, known in zip(allocated, levels, strict=False)])
        and rate * window.length >= _UNSEEN
    ):
        found.append(
            Finding(
                kind="leak",
                pattern="unseen",
                title=f"{signed_bytes_text(round(rate))} per step of device memory that no tensor in Python shows",
                bytes=round(rate * window.length),
                bytes_per_step=round(rate),
                evidence=(
                    f"allocated: {bytes_text(allocated[window.first])}, later {bytes_text(allocated[-1])}; live "
                    "tensors: "
                    f"{bytes_text(levels[window.first])}, later {bytes_text(levels[-1])}",
                ),
                remedy="C++ code keeps it: an extension, a compiled function, or graphs of CUDA for every new shape. "
                "`gpuheap.record()` with native stacks tells where it is made.",
                confidence="medium",
            )
        )
    growth = reserved[-1] - reserved[window.first]
    flat = abs(allocated[-1] - allocated[window.first]) + explained * window.length <= 0.1 * growth
    waste = reserved[-1] - max(allocated)
    if (
        rises(window, reserved)
        and flat
        and growth >= _RESERVED_SHARE * reserved[-1]
        and waste >= _WASTE_SHARE * reserved[-1]
    ):
        found.append(
            Finding(
                kind="fragmentation",
                title=f"reserved memory grew from {bytes_text(reserved[window.first])} to {bytes_text(reserved[-1])} "
                "while "
                "what is in use at step ends stayed",
                bytes=growth,
                bytes_per_step=round(slope(reserved[window.first :])),
                evidence=(
                    f"in use at step ends: {bytes_text(allocated[window.first])}, later {bytes_text(allocated[-1])}",
                ),
                remedy="Use expandable segments, which grow in place instead of leaving pieces behind: "
                "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. `gpuheap.record()` and `gpuheap whatif` say how "
                "much it "
                "saves.",
                confidence="medium",
            )
        )
    return found
