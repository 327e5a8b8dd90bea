"""What autograd keeps for the backward pass, read from the graph without unpacking anything.

Unpacking would run the hooks of checkpoints and of offloading; so would reading a node's `_saved_...` attributes. Their
raw forms do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["saved_tensors"]

_names_of: dict[type, tuple[str, ...]] = {}


def saved_tensors(roots: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Every node below these tensors with every tensor that it keeps as it is. What hooks made of one is left out."""
    waiting = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for saved in _raw(node):
            data = getattr(saved, "data", None)
            if hasattr(data, "untyped_storage"):
                yield node, data
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _raw(node: Any) -> Iterator[Any]:
    kind = type(node)
    names = _names_of.get(kind)
    if names is None:
        names = _names_of[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:
            # The graph was freed by a backward pass before.
            continue
        if isinstance(value, (tuple, list)):
            yield from value
        elif value is not None:
            yield value
