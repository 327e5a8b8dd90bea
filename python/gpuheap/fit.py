"""Whether a model fits before it runs, and the plan that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuheap._bytes import parse_bytes
from gpuheap._fit.plan import Plan

__all__ = ["Fit", "Plan", "fit"]


@dataclass
class Fit:
    """A program to plan for: what ``make()`` returns. A tuple ``(model, optimizer, loss, batch)`` does as well."""

    model: Any
    """A `torch.nn.Module` in training mode, on the CPU."""
    optimizer: Any = None
    """Its optimizer, or a tuple of them; None to plan for evaluation."""
    loss: Any = None
    """None if the model computes it (``model(**batch).loss``); ``loss(output, target)`` with a batch of inputs and
    target; or ``loss(model, batch)`` for the whole forward pass."""
    batch: Any = None
    """A batch of the largest kind that training will see: tensors, or a dict or tuple of them."""
    step: Any = None
    """In place of the loss: ``step(model, optimizer, batch)``, which does a whole step."""


def _levers(must: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    for lever in must:
        if not isinstance(lever, Mapping) or not isinstance(lever.get("lever"), str):
            raise TypeError(f'`must` has {lever!r}, expected levers, such as {{"lever": "accumulate", "factor": 4}}')
    return [dict(lever) for lever in must]


def _names(names: Sequence[str]) -> list[str]:
    """A name alone is one name, and not its letters."""
    return [names] if isinstance(names, str) else list(names)


class _Fit:
    """`gpuheap.fit(make, budget)` and what makes a program of a Trainer, a LightningModule or a name."""

    def __call__(
        self,
        make: Callable[[], Any] | str,
        budget: int | str | None = None,
        *,
        gpus: int = 1,
        device: str | None = None,
        verify: bool = False,
        batch: int | None = None,
        must: Sequence[Mapping[str, Any]] = (),
        without: Sequence[str] = (),
        allow: Sequence[str] = (),
        conf: str | None = None,
        front: bool = False,
        timeout: float | None = None,
    ) -> Plan:
        """Trace a program, predict its peak, and find the fastest plan that keeps to the budget. Needs no GPU.

        The program is made and traced in a process of its own, on tensors that have shapes and no data: nothing here
        changes, and nothing of its size is allocated.

        Args:
            make: returns the program, as :class:`gpuheap.Fit` or ``(model, optimizer, loss, batch)``; or where it is,
                as ``"train.py:make"``, or a name such as ``"torchvision:resnet152"``.
            budget: the most that the program may take of each GPU, its context included, in bytes or as text
                (``"24GiB"``); by default all of the device.
            gpus: GPUs of one host to spread the work over, as copies, by FSDP2, tensor parallelism or a pipeline.
            device: the type of GPU, as ``"H200"``; by default that of this machine if there is one, else an H200.
            verify: whether to run the plan for some steps on the GPU, in a process of its own: ``plan.verified``.
            batch: samples a step, over all GPUs; by default those of the batch that ``make`` returns.
            must: levers that the plan has to have, as ``{"lever": "accumulate", "factor": 4}``.
            without: names of levers that it must not have; ``"all"``: predict, plan nothing.
            allow: levers that it may use although they change results: ``"autocast"``, ``"parameters"``,
                ``"optimizer_state"``, ``"8bit"``, ``"4bit"``, and ``"accumulate"`` where batches are normalized.
            conf: settings of the allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``; no others are tried then.
            front: whether to work out time against memory, too: ``plan.front``.
            timeout: seconds that making and tracing the program may take each time; by default as long as it takes.

        Raises:
            IsolateTimeout: one trace took longer than ``timeout``.
            Error: the program cannot be made or traced, or a setting makes no sense; the message says where and what
                to do. A program that does not fit is no error: see ``plan.fits``.

        >>> plan = gpuheap.fit(make, "24GiB")
        >>> print(plan.explain())
        """
        from gpuheap._fit.planning import plan_for

        options = {
            "budget_bytes": None if budget is None else parse_bytes(budget),
            "gpus": gpus,
            "device": device,
            "batch": batch,
            "set": _levers(must),
            "without": _names(without),
            "allow": _names(allow),
            "conf": conf,
            "front": front,
        }
        plan = plan_for(make, options, timeout=timeout)
        if verify:
            plan.verify(make)
        return plan

    def from_trainer(self, trainer: Any) -> Callable[[], Fit]:
        """A ``make`` of a Hugging Face `Trainer`: its model, optimizer and loss, and the largest batch of its data.

        The trainer is not changed; what is traced is a copy made without data.

        >>> plan = gpuheap.fit(gpuheap.fit.from_trainer(trainer), "24GiB")
        """
        from gpuheap._fit.adapters.trainer import make_of

        return make_of(trainer)

    def from_lightning(self, module: Any, data: Any) -> Callable[[], Fit]:
        """A ``make`` of a `LightningModule` and its datamodule, data loader, or a batch.

        The module's own ``training_step`` and ``configure_optimizers`` are what is traced.

        >>> plan = gpuheap.fit(gpuheap.fit.from_lightning(module, datamodule), "24GiB")
        """
        from gpuheap._fit.adapters.lightning import make_of

        return make_of(module, data)

    def from_name(self, name: str, batch: int | None = None) -> Callable[[], Fit]:
        """A ``make`` of a model by name, with random weights and a batch of random data.

        ``"torchvision:resnet152"``, ``"timm:vit_base_patch16_224"``, ``"transformers:BertForMaskedLM"`` (a class with
        its own configuration), or ``"transformers:FOLDER"`` with a ``config.json`` in it. Nothing is downloaded.
        """
        from gpuheap._fit.adapters.names import make_of

        return make_of(name, batch)


fit = _Fit()
