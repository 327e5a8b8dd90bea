"""Health in the training log: only what is new."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gpuheap._watch.health import Health

if TYPE_CHECKING:
    from gpuheap._watch.sinks import Place

__all__ = ["Log"]


class Log:
    """One line when the kind of health changes: a warning if it is sick, else information."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        """Levels and handlers are the program's business."""
        self._logger = logger
        self._kinds: dict[str, str] = {}

    def write(self, health: Health, place: Place) -> None:
        """Log it if it is news. Warming up is none."""
        if health.kind == "warming_up" or self._kinds.get(health.device) == health.kind:
            return
        self._kinds[health.device] = health.kind
        of = [] if place.rank is None else [f"rank {place.rank}"]
        of += [health.device] if place.several else []
        whose = f" ({', '.join(of)})" if of else ""
        level = logging.WARNING if health.sick else logging.INFO
        self._logger.log(level, "step %d%s: %s", health.step, whose, health.sentence)
