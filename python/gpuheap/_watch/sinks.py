"""Where health goes. What is given is told by its type; nothing is imported for it that the program does not have."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from gpuheap._watch.health import Health
from gpuheap._watch.jsonl import JsonLines
from gpuheap._watch.log import Log
from gpuheap._watch.trackers import Mlflow, OpenTelemetry, TensorBoard, Wandb
from gpuheap.errors import Error

__all__ = ["Place", "Sink", "sinks_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """Whose health it is, beyond the device."""

    prefix: str
    """What the names of metrics begin with: `gpuheap/`, or `gpuheap/cuda1/` where there are several devices."""
    several: bool
    """Whether there are several devices."""
    rank: int | None
    """The number of this process among those of the job."""


class Sink(Protocol):
    """One place that health goes to."""

    def write(self, health: Health, place: Place) -> None:
        """Take one. Raising leaves this sink out from then on."""


class _Call:
    def __init__(self, function: Callable[[Health], object]) -> None:
        self._function = function

    def write(self, health: Health, place: Place) -> None:
        self._function(health)


def sinks_of(to: Any) -> list[Sink]:
    """The sinks for what was given as `to`."""
    if isinstance(to, Sequence) and not isinstance(to, (str, bytes)):
        return [sink for one in to for sink in sinks_of(one)]
    sink = _sink(to)
    if sink is None:
        what = to if isinstance(to, str) else type(to).__name__
        raise Error(
            f"Failed to watch\n  cause: health cannot be written to `{what}`",
            'give "log", a path that ends in .jsonl, a logger, a SummaryWriter, a wandb run, mlflow, "otel", a meter, '
            "a function that takes a Health, or a list of these",
        )
    return [sink]


def _sink(to: Any) -> Sink | None:
    if isinstance(to, str) and to == "log":
        return Log(logging.getLogger("gpuheap"))
    if isinstance(to, (logging.Logger, logging.LoggerAdapter)):
        return Log(to)
    if isinstance(to, (str, os.PathLike)) and os.fspath(to).endswith(".jsonl"):
        return JsonLines(os.fspath(to))
    name = to if isinstance(to, str) else to.__name__ if isinstance(to, ModuleType) else None
    by_name: dict[str | None, Callable[[], Sink]] = {
        "wandb": lambda: Wandb(None),
        "mlflow": Mlflow,
        "otel": lambda: OpenTelemetry(None),
    }
    if name in by_name:
        return by_name[name]()
    if name is not None:
        return None
    if _is(to, ("torch", "tensorboard", "tensorboardX"), "SummaryWriter"):
        return TensorBoard(to)
    if _is(to, ("wandb",), "Run"):
        return Wandb(to)
    if _is(to, ("opentelemetry",), "Meter"):
        return OpenTelemetry(to)
    return _Call(to) if callable(to) else None


def _is(value: Any, packages: tuple[str, ...], name: str) -> bool:
    """Whether a value is of a type of that name, or of one that is derived from it."""
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] in packages for kind in type(value).__mro__)
