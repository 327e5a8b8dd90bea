"""Callbacks for trainers. Each needs its framework only when it is made."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap._watch.health import Health
    from gpuheap._watch.sinks import Place
    from gpuheap.watch import watch

__all__ = ["hf_callback", "keras_callback", "lightning_callback"]


def _import(names: tuple[str, ...], what: str) -> Any:
    """The first of the modules that is loaded, else the first that can be."""
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise Error(f"Failed to make a callback for {what}\n  cause: `{names[0]}` is not installed")


def hf_callback(watch: watch) -> Any:
    """For Hugging Face's `Trainer(callbacks=[...])`: one step is one of the optimizer's."""
    base = _import(("transformers",), "Hugging Face Trainer").TrainerCallback

    class GpuheapCallback(base):  # type: ignore[misc, valid-type]
        """Follows the training with `gpuheap.watch`."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """Begins."""
            watch.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Counts."""
            watch.step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """Ends."""
            watch.stop()

    return GpuheapCallback()


def lightning_callback(watch: watch) -> Any:
    """For Lightning's `Trainer(callbacks=[...])`: one step is one of the optimizer's. Also writes to its loggers."""
    module = _import(("lightning.pytorch", "pytorch_lightning"), "Lightning")

    class Loggers:
        """The trainer's loggers, while it trains."""

        def __init__(self, trainer: Any) -> None:
            self._trainer = trainer

        def write(self, health: Health, place: Place) -> None:
            metrics = {place.prefix + name: value for name, value in health.metrics().items()}
            for logger in self._trainer.loggers:
                logger.log_metrics(metrics, step=self._trainer.global_step)

    class GpuheapCallback(module.Callback):  # type: ignore[misc, name-defined]
        """Follows the training with `gpuheap.watch`."""

        def __init__(self) -> None:
            self._sink: Any = None
            self._steps = 0

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            """Begins."""
            self._steps = trainer.global_step
            self._sink = Loggers(trainer)
            watch._add(self._sink)
            watch.start()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            """Counts, if the optimizer has stepped: several batches may be one step."""
            if trainer.global_step != self._steps:
                self._steps = trainer.global_step
                watch.step()

        def on_train_end(self, *_: Any) -> None:
            """Ends."""
            self._end()

        def on_exception(self, *_: Any) -> None:
            """Ends."""
            self._end()

        def _end(self) -> None:
            watch.stop()
            watch._remove(self._sink)
            self._sink = None

    return GpuheapCallback()


def keras_callback(watch: watch) -> Any:
    """For Keras' `fit(callbacks=[...])`: one step is one batch."""
    base = _import(("keras", "tensorflow.keras"), "Keras").callbacks.Callback

    class GpuheapCallback(base):  # type: ignore[misc, valid-type]
        """Follows the training with `gpuheap.watch`."""

        def on_train_begin(self, logs: Any = None) -> None:
            """Begins."""
            watch.start()

        def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
            """Counts."""
            watch.step()

        def on_train_end(self, logs: Any = None) -> None:
            """Ends."""
            watch.stop()

    return GpuheapCallback()
