"""Habits that cost memory or time, told by the calls that were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.calls import Backward, Forward, ZeroGrad
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Site, Stack
from gpuheap._doctor.subject import Item, Subject
from gpuheap._objects import is_instance

__all__ = ["autocast_cache", "backward_words", "data_parallel", "empty_cache", "evaluation_graphs", "zeroed_gradients"]


def _site(stacks: Sequence[Stack]) -> Site | None:
    counts = Counter(stack.sites[0] for stack in stacks if stack.sites)
    return counts.most_common(1)[0][0] if counts else None


def evaluation_graphs(forwards: Sequence[Forward]) -> list[Finding]:
    """Forward passes in evaluation mode whose graph no backward pass has used."""
    unused = [one for one in forwards if not one.used]
    if not unused:
        return []
    taken = max((one.bytes or 0 for one in unused), default=0)
    return [
        Finding(
            kind="evaluation_graph",
            title="evaluation builds a graph that no backward pass uses",
            bytes=taken,
            site=_site([one.stack for one in unused]),
            evidence=(
                f"{len(unused)} forward passes of the model in evaluation built one",
                f"a graph keeps {bytes_text(taken)} until the output is dropped",
            ),
            remedy="Evaluate inside `with torch.no_grad():` or `with torch.inference_mode():`; `model.eval()` alone "
            "does not "
            "stop the recording.",
        )
    ]


def zeroed_gradients(calls: Sequence[ZeroGrad]) -> list[Finding]:
    """Gradients that are filled with zeros and stay."""
    if not calls:
        return []
    taken = max(one.bytes for one in calls)
    return [
        Finding(
            kind="zero_grad_keeps",
            title="`zero_grad(set_to_none=False)` keeps the memory of all gradients between the steps",
            bytes=taken,
            site=_site([one.stack for one in calls]),
            evidence=(
                f"called {len(calls)} times; the gradients take {bytes_text(taken)}",
                "they are there while the forward pass builds up its activations",
            ),
            remedy="Call `zero_grad()`: it sets gradients to None, and the next backward pass makes new ones.",
        )
    ]


def data_parallel(subject: Subject) -> list[Finding]:
    """`nn.DataParallel` anywhere in the model."""
    kind = getattr(subject.torch.nn, "DataParallel", None)
    names = [
        name or "the model itself"
        for name, module in subject.modules()
        if kind is not None and is_instance(module, kind)
    ]
    if not names:
        return []
    weights = sum({item.keys: item.bytes for item in subject.items() if not item.buffer}.values())
    return [
        Finding(
            kind="data_parallel",
            title="the model is wrapped in `nn.DataParallel`",
            bytes=weights,
            evidence=(
                ", ".join(names),
                f"every forward pass copies {bytes_text(weights)} of weights to each other device, and the outputs and "
                "gradients of all devices come together on the first, which runs out of memory before the others",
            ),
            remedy="Use `DistributedDataParallel` with one process per device (`torchrun`); on one device use the "
            "bare model.",
        )
    ]


def empty_cache(calls: Sequence[tuple[Stack, float]], steps: int, step_seconds: Sequence[float]) -> list[Finding]:
    """`empty_cache()` in every step."""
    if not steps or len(calls) < max(2, 0.8 * steps):
        return []
    seconds = sum(spent for _, spent in calls)
    total = sum(step_seconds)
    share = f", {100 * seconds / total:.0f} % of the steps' time" if total else ""
    return [
        Finding(
            kind="empty_cache_in_steps",
            title=f"`torch.cuda.empty_cache()` is called {len(calls) / steps:.1f} times per step",
            site=_site([stack for stack, _ in calls]),
            evidence=(
                f"the calls took {1000 * seconds / steps:.3g} ms per step{share}; what they gave back is asked for "
                "again "
                "in the next step, which costs more",
            ),
            remedy="Leave it out: it frees nothing that the program itself could not use. Before another process "
            "needs the "
            "memory, `gpuheap.release()` once says what it gave back.",
        )
    ]


def autocast_cache(torch: Any, items: Sequence[Item]) -> list[Finding]:
    """Asked before the steps: are all of them inside one `autocast` and `no_grad`?"""
    if torch.is_grad_enabled() or not torch.is_autocast_cache_enabled():
        return []
    device = "cpu" if not items or items[0].device in ("cpu", "meta") else items[0].device.partition(":")[0]
    try:
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    except (TypeError, AttributeError):  # before PyTorch 2.4
        enabled = torch.is_autocast_enabled() if device != "cpu" else torch.is_autocast_cpu_enabled()
        dtype = torch.get_autocast_gpu_dtype() if device != "cpu" else torch.get_autocast_cpu_dtype()
    cast = [item for item in items if not item.buffer and item.requires_grad and item.dtype == "float32"]
    if not enabled or dtype == torch.float32 or not cast:
        return []
    taken = sum({item.keys: item.bytes // 2 for item in cast}.values())
    return [
        Finding(
            kind="autocast_cache",
            title="all steps run inside one `autocast` under `no_grad`: its cache keeps a copy of the weights",
            bytes=taken,
            evidence=(
                f"{len(cast)} float32 parameters that require gradients are cached as "
                f"{str(dtype).removeprefix('torch.')} "
                f"until the outermost `autocast` ends: up to {bytes_text(taken)}",
            ),
            remedy="Enter `autocast` inside each step, or pass `cache_enabled=False`; for inference convert the "
            "model once "
            "(`model.to(torch.bfloat16)`).",
            confidence="medium",
        )
    ]


def backward_words(backwards: Sequence[Backward]) -> str | None:
    """How the backward passes were asked to keep their graphs, for the evidence of a leak."""
    for name in ("create_graph", "retain_graph"):
        kept = [one for one in backwards if getattr(one, name)]
        if kept:
            site = _site([one.stack for one in kept])
            return f"`backward({name}=True)`" + (f" at {site}" if site is not None else "")
    return None
