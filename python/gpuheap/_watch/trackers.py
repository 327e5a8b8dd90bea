"""Health to experiment trackers, under the same names everywhere."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuheap._watch.health import METRICS, Health

if TYPE_CHECKING:
    from gpuheap._watch.sinks import Place

__all__ = ["Mlflow", "OpenTelemetry", "TensorBoard", "Wandb", "named"]


def named(health: Health, place: Place) -> dict[str, float]:
    """Metrics by full name: `gpuheap/allocated_bytes`."""
    return {place.prefix + name: value for name, value in health.metrics().items()}


class TensorBoard:
    """A `SummaryWriter`, PyTorch's or tensorboardX's."""

    def __init__(self, writer: Any) -> None:
        """`writer` stays the program's to close."""
        self._writer = writer

    def write(self, health: Health, place: Place) -> None:
        """One scalar a metric."""
        for name, value in named(health, place).items():
            self._writer.add_scalar(name, value, health.step)


class Wandb:
    """A run of Weights & Biases, or whichever is under way."""

    def __init__(self, run: Any | None) -> None:
        """Without a run it is the one that `wandb.run` is when there is something to write."""
        self._run = run

    def write(self, health: Health, place: Place) -> None:
        """Goes into the row that the program logs next: a row of its own would move the program's steps on."""
        run = self._run if self._run is not None else import_module("wandb").run
        if run is None:
            raise RuntimeError("no run is under way: call `wandb.init()` before the watch begins")
        run.log({**named(health, place), "gpuheap/step": health.step}, commit=False)


class Mlflow:
    """MLflow's active run."""

    def write(self, health: Health, place: Place) -> None:
        """Metrics with the step."""
        import_module("mlflow").log_metrics(named(health, place), step=health.step)


class OpenTelemetry:
    """Gauges of a meter; device and rank are attributes."""

    def __init__(self, meter: Any) -> None:
        """Without a meter it is the global one for `gpuheap`."""
        meter = import_module("opentelemetry.metrics").get_meter("gpuheap") if meter is None else meter
        self._values: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {name: {} for name in METRICS}
        self._gauges: dict[str, Any] = {}
        for name in METRICS:
            unit = "By" if name.endswith("_bytes") else "s" if name.startswith("seconds") else "1"
            if hasattr(meter, "create_gauge"):
                self._gauges[name] = meter.create_gauge(f"gpuheap/{name}", unit=unit)
            else:
                meter.create_observable_gauge(f"gpuheap/{name}", callbacks=[self._observe(name)], unit=unit)

    def write(self, health: Health, place: Place) -> None:
        """Set the gauges of this device."""
        attributes = {"device": health.device} if place.rank is None else {"device": health.device, "rank": place.rank}
        for name, value in health.metrics().items():
            gauge = self._gauges.get(name)
            if gauge is not None:
                gauge.set(value, attributes)
            self._values[name][health.device] = (value, attributes)

    def _observe(self, name: str) -> Any:
        def observe(_options: Any) -> list[Any]:
            observation = import_module("opentelemetry.metrics").Observation
            return [observation(value, attributes) for value, attributes in self._values[name].values()]

        return observe
