"""A `LightningModule` and its data as a program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuheap.errors import Error

if TYPE_CHECKING:
    from gpuheap.fit import Fit

__all__ = ["make_of"]


def make_of(module: Any, data: Any) -> Callable[[], Fit]:
    """A `make()` whose loss is the module's `training_step`.

    Args:
        module: a `LightningModule`; it keeps its weights and hooks.
        data: a datamodule, a data loader, or a batch.

    Raises:
        Error: there is no training step, or no batch.
    """
    for name in ("training_step", "configure_optimizers"):
        if not callable(getattr(module, name, None)):
            raise Error(f"{type(module).__name__} has no `{name}`", "Give a `LightningModule`.")
    if getattr(module, "automatic_optimization", True) is False:
        raise Error(
            f"{type(module).__name__} optimizes by hand, so its training step has no loss to plan with",
            "Write a `make()` whose `step` does what the training step does.",
        )
    batch = _batch(data)
    weights = copy.deepcopy(module).cpu()

    def make() -> Fit:
        from gpuheap.fit import Fit

        made = copy.deepcopy(weights)
        made.train()
        # What is logged goes nowhere: there is no trainer.
        for name in ("log", "log_dict"):
            if hasattr(made, name):
                object.__setattr__(made, name, lambda *_, **__: None)
        return Fit(made, _optimizer(made), _loss, batch)

    return make


def _loss(model: Any, batch: Any) -> Any:
    output = model.training_step(batch, 0)
    return output["loss"] if isinstance(output, dict) else output


def _optimizer(module: Any) -> Any:
    """The optimizer out of what `configure_optimizers` may return."""
    made = module.configure_optimizers()
    if isinstance(made, dict):
        made = made["optimizer"]
    elif isinstance(made, (tuple, list)) and made and isinstance(made[0], (tuple, list)):
        made = list(made[0])
    if isinstance(made, (tuple, list)):
        made = [one["optimizer"] if isinstance(one, dict) else one for one in made]
        if len(made) == 1:
            return made[0]
        raise Error(
            f"{type(module).__name__} has {len(made)} optimizers; which step is whose is up to its own loop",
            "Write a `make()` with a `step` of your own.",
        )
    return made


def _batch(data: Any) -> Any:
    """The first batch."""
    loader = data
    if callable(getattr(data, "train_dataloader", None)):
        for name in ("prepare_data", "setup"):
            call = getattr(data, name, None)
            if callable(call):
                call("fit") if name == "setup" else call()
        loader = data.train_dataloader()
    if isinstance(loader, (dict, tuple)) or hasattr(loader, "shape"):
        return loader
    try:
        return next(iter(loader))
    except (TypeError, StopIteration) as error:
        raise Error(
            f"{type(data).__name__} gives no batch", "Give a datamodule, a data loader with samples, or a batch."
        ) from error
