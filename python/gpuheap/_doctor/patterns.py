"""What a leak looks like, what it usually is, and what to do: the words of `gpuheap explain`."""

from __future__ import annotations

from gpuheap._doctor.sites import Site
from gpuheap._frames import short_file

__all__ = ["WHAT", "advice"]

WHAT: dict[str, str] = {
    "total": "a total is summed up with the graph of every step",
    "state": "a state is carried over with the graph of every step",
    "graph": "the graph of every forward pass is kept",
    "gradient graph": "gradients with a graph keep the graph of every step",
    "exceptions": "caught exceptions keep the frames of calls that failed, and their tensors",
    "hook": "a hook keeps a tensor of every call",
    "view": "kept views pin larger storages",
    "gradients": "memory that the backward pass made is kept",
    "cache": "one block for every new key or size is kept",
    "method cache": "an `lru_cache` on a method keeps its results, and the object itself",
    "periodic": "something is kept every few steps",
    "model copies": "copies of weights or optimizer state are kept",
    "numbers": "single numbers are kept as tensors",
    "batches": "batches are kept after their step",
    "joined": "one tensor is joined with new parts over and over",
    "kept": "tensors of every step are kept",
    "collector off": "reference cycles keep tensors, and the collector is switched off",
}

_ADVICE: dict[str, str] = {
    "total": "Sum numbers, not tensors: `total += loss.item()`, or `loss.detach()` to avoid the wait for the device.",
    "state": "Cut the graph between steps: carry over `state.detach()`.",
    "graph": "Keep numbers, not tensors: use `.item()` for a loss that is summed or logged, `.detach()` for results "
    "and for a state that is carried over.",
    "gradient graph": "Set gradients to None after each step (`zero_grad()`), or use `torch.autograd.grad` instead of "
    "`backward(create_graph=True)`: parameter, gradient and graph keep each other alive.",
    "exceptions": "Keep the text of a caught exception, not the exception: its traceback holds every local tensor.",
    "hook": "Clear what the hook collects after each step, or keep `.item()` or `.detach().cpu()` of it.",
    "view": "`.clone()` the part that is kept: a view keeps its whole storage.",
    "gradients": "Do not keep gradients or the results of `create_graph=True` from step to step: keep `.item()` or "
    "`.detach().cpu()` of them, or use `torch.autograd.grad`.",
    "cache": "Bound the cache (for example `functools.lru_cache(maxsize=8)`), or pad to a few sizes.",
    "method cache": "Bound the cache, and keep it on the instance: a cache on a method holds every `self` it has seen.",
    "periodic": "Bound what evaluation, logging or a replay buffer collects, or move it to the host with "
    "`.detach().cpu()`.",
    "model copies": "Keep copies of weights on the host (`.cpu()`) or on disk, and only as many as are used.",
    "numbers": "Keep `.item()` of a number that is logged, or copy all of them to the host now and then.",
    "batches": "Drop the batch at the end of its step; keep `.detach().cpu()`, or an index into the data set.",
    "joined": "Collect the parts on the host (`.detach().cpu()`) and join them once, or give the tensor a limit.",
    "kept": "Bound the list, dict or attribute that holds them, or keep `.detach().cpu()` of results; a kept view "
    "keeps its whole storage, `.clone()` of the part does not.",
    "collector off": "Break the reference cycle (`weakref`, or set the attribute to `None`), and let the collector "
    "run: `gc.enable()`, or `gc.collect()` every few steps.",
}


def advice(pattern: str, site: Site | None) -> str:
    """What to change."""

    place = "" if site is None else f" Start at {short_file(site.file)}:{site.line}."
    return f"{_ADVICE[pattern]}{place}"
