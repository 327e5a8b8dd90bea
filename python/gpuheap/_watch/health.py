"""What is known of a device after some steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["METRICS", "Health", "health_of"]

METRICS = (
    "allocated_bytes",
    "blocks",
    "reserved_bytes",
    "waste",
    "free_bytes",
    "total_bytes",
    "outside_bytes",
    "others_bytes",
    "growth_bytes_per_step",
    "steps_left",
    "seconds_left",
    "retries",
    "ooms",
    "sick",
)
"""What goes to trackers, each as `gpuheap/NAME`; what is not known is left out."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one device at one step. Amounts are bytes."""

    step: int
    """The step of the last counters that were taken."""
    device: str
    """As its framework writes it: `cuda:0`."""
    kind: str
    """`warming_up`, `steady`, `leak`, `sawtooth`, `growing`, `reserved_growth` or `outside_growth`."""
    sick: bool
    """Whether somebody should do something about it."""
    confidence: str
    """`low`, `medium` or `high`."""
    sentence: str
    """All of it that matters."""
    steps_judged: int
    """How many steps the judgement rests upon."""
    since: int | None
    """The step from which on it was judged anew, because the level had moved at once: another model, an evaluation."""
    allocated_bytes: int
    """What the allocator has handed out."""
    blocks: int | None
    """In how many blocks; None if it does not count them."""
    reserved_bytes: int
    """What it has taken from the driver."""
    waste: float | None
    """The share of the most reserved memory that was never in use, from 0 to 1."""
    free_bytes: int | None
    """What the driver could still give to anyone."""
    total_bytes: int | None
    """What the device has."""
    outside_bytes: int | None
    """In use on the device, and neither reserved nor (if these are known) other processes': contexts, libraries."""
    others_bytes: int | None
    """What other processes hold, where the driver tells."""
    growth_bytes_per_step: float
    """Growth of what `kind` is about: of live memory, unless reserved memory or that outside grows."""
    steps_left: tuple[int, int] | None
    """How many more steps until memory runs out at this slope: at least, and if all cached memory serves first."""
    seconds_left: tuple[float, float] | None
    """The same in seconds, at the pace of the last steps."""
    retries: int
    """How often the allocator had to empty its cache to serve a request."""
    ooms: int
    """How many requests have failed."""

    def metrics(self) -> dict[str, float]:
        """What is known, as numbers: `allocated_bytes` and so on. Of ranges the lower end."""
        found: dict[str, float] = {}
        for name in METRICS:
            value = getattr(self, name)
            if value is not None:
                found[name] = value[0] if isinstance(value, tuple) else int(value) if name == "sick" else value
        return found

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return asdict(self)


def health_of(device: str, row: dict[str, Any]) -> Health:
    """From the judge's row."""
    return Health(
        step=row["step"],
        device=device,
        kind=row["kind"],
        sick=row["sick"],
        confidence=row["confidence"],
        sentence=row["sentence"],
        steps_judged=row["steps_judged"],
        since=row["since"],
        allocated_bytes=row["allocated"],
        blocks=row["blocks"],
        reserved_bytes=row["reserved"],
        waste=row["waste"],
        free_bytes=row["free"],
        total_bytes=row["total"],
        outside_bytes=row["outside"],
        others_bytes=row["others"],
        growth_bytes_per_step=row["growth_per_step"],
        steps_left=row["steps_left"],
        seconds_left=row["seconds_left"],
        retries=row["retries"],
        ooms=row["ooms"],
    )
