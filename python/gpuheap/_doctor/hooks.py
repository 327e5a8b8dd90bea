"""What the hooks of the model keep from one step to the next."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.sites import Site, function_site
from gpuheap._doctor.subject import Subject
from gpuheap._doctor.timeline import Timeline
from gpuheap._names import _table
from gpuheap._objects import instance_dict, is_instance
from gpuheap._tensors import in_graph, storages_of

__all__ = ["find", "kept_by_hooks"]

_TABLES = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
_DEPTH = 6
_MOST = 20_000
_SHARE = 0.01


def _inside(torch: Any, value: Any) -> Iterator[Any]:
    """Tensors that a function reaches through its cells, defaults, bound object and containers; not through modules."""
    seen: set[int] = set()
    queue: deque[tuple[Any, int]] = deque([(value, 0)])
    while queue and len(seen) < _MOST:
        one, depth = queue.popleft()
        if id(one) in seen or depth > _DEPTH:
            continue
        seen.add(id(one))
        if is_instance(one, torch.Tensor):
            yield one
            continue
        parts: list[Any] = []
        if type(one) is types.FunctionType:
            for cell in one.__closure__ or ():
                try:
                    parts.append(cell.cell_contents)
                except ValueError:  # not set yet
                    continue
            parts += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), *one.__dict__.values()]
            # Of the globals only what the function names itself.
            names = one.__code__.co_names
            parts += [one.__globals__[name] for name in names if type(one.__globals__.get(name)) in (list, dict, deque)]
        elif type(one) is types.MethodType:
            parts = [one.__func__, one.__self__]
        elif type(one) is functools.partial:
            parts = [one.func, *one.args, *one.keywords.values()]
        elif is_instance(one, dict):
            parts = list(dict.values(one))
        elif is_instance(one, list):
            parts = list(list.__iter__(one))
        elif is_instance(one, tuple):
            parts = list(tuple.__iter__(one))
        elif type(one) in (deque, set, frozenset):
            parts = list(one)
        elif not is_instance(one, torch.nn.Module) and type(one) not in (types.ModuleType, types.FrameType, type):
            attributes = instance_dict(one)
            parts = list(attributes.values()) if attributes is not None and depth <= 2 else []
        queue.extend((part, depth + 1) for part in parts)


def _hooks(subject: Subject) -> Iterator[tuple[str, Any]]:
    for name, module in subject.modules():
        for table, what in _TABLES.items():
            for hook in list(_table(module, table).values()):
                yield f"{what} of `{name}`" if name else f"{what} of the model", hook


def kept_by_hooks(subject: Subject, timeline: Timeline) -> tuple[dict[int, tuple[str, Site | None]], set[int]]:
    """By key of a storage made in the steps: which hook keeps it; and the keys of those that have a graph."""
    found: dict[int, tuple[str, Site | None]] = {}
    with_graph: set[int] = set()
    for name, hook in _hooks(subject):
        site = function_site(hook)
        for tensor in _inside(subject.torch, hook):
            for storage in storages_of(subject.torch, tensor):
                one = timeline.alive.get(storage.key)
                if one is not None and one.born >= 0 and storage.key not in timeline.owned:
                    where = f"kept by the {name}" + (f", defined at {site}" if site is not None else "")
                    found.setdefault(storage.key, (where, site))
                    if in_graph(tensor):
                        with_graph.add(storage.key)
    return found, with_graph


def find(
    timeline: Timeline, hooked: dict[int, tuple[str, Site | None]], with_graph: set[int], kept: set[int]
) -> tuple[list[Finding], list[Finding]]:
    """What hooks hold of the last step without letting it pile up: findings, and information."""
    keys = [key for key in hooked if key not in kept]
    if not keys:
        return [], []
    taken = sum(timeline.alive[key].storage.bytes for key in keys)
    graphs = [key for key in keys if key in with_graph]
    where, site = hooked[(graphs or keys)[0]]
    evidence = [f"{len(keys)} tensors of the last step were alive at its end: {where}"]
    if graphs:
        evidence.append(
            f"{len(graphs)} of them have a graph, which keeps what it saved as long as no backward pass frees it"
        )
    finding = Finding(
        kind="hook_keeps",
        title=f"hooks of the model keep {bytes_text(taken)} from one step to the next",
        bytes=taken,
        site=site,
        evidence=tuple(evidence),
        remedy="Clear what the hook collects at the end of each step, or keep `.detach()` or `.item()` of it.",
        confidence="medium",
    )
    if graphs or taken >= _SHARE * (timeline.levels[-1] if timeline.levels else 0):
        return [finding], []
    return [], [finding]
