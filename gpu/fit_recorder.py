"""Which operator took which memory: PyTorch's memory history, cut at operators.

A marker, an allocation of a size that no program asks for, goes before and after each operator that reaches the
dispatcher, in the forward and in the backward pass; the history is read once, at the end. So kernels' own memory (that
of cuBLAS, cuDNN, sorts, attention) is told apart from operators' results, at the price of a Python call an operator.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

BEGIN, END = 3, 5
"""Bytes of the markers."""
HISTORY = 2_000_000
SHORT = 6
"""A list of more tensors is described by its count and its bytes."""

Op = dict[str, Any]


def layout(tensor: torch.Tensor) -> str:
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    if tensor.is_contiguous():
        return "c"
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "n"
    return "s"


def described(value: Any) -> Any:
    """An argument or a result, short: a tensor as [shape, dtype, layout, device's first letter]."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"t": list(value.shape), "d": kind, "l": layout(value), "at": value.device.type}
    if isinstance(value, (list, tuple)):
        tensors = [one for one in value if isinstance(one, torch.Tensor)]
        if len(tensors) > SHORT:
            return {
                "tensors": len(tensors),
                "bytes": sum(one.nbytes for one in tensors),
                "d": str(tensors[0].dtype)[6:],
            }
        return [described(one) for one in value]
    if isinstance(value, dict):
        return {str(key): described(one) for key, one in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def results_bytes(value: Any) -> list[int]:
    """The storages behind the results, each once."""
    found: dict[int, int] = {}
    for tensor in torch.utils._pytree.tree_leaves(value):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return list(found.values())


class Recorder(TorchDispatchMode):
    """Within it, every operator is noted; `finish` joins them with the history."""

    def __init__(self, name: str, *, timed: bool = False) -> None:
        super().__init__()
        self.device = name
        self.ops: list[Op] = []
        self.outside: list[list[int]] = []
        """Allocations that no operator made: [bytes, after which operator]."""
        self.timed = timed
        self.threads: dict[int, int] = {}
        self.spans: list[tuple[Any, Any]] = []

    def __enter__(self) -> Recorder:
        if self.device == "cuda":
            torch.cuda.memory._record_memory_history(None)
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=HISTORY)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)

    def mark(self, size: int) -> None:
        if self.device == "cuda":
            torch.empty(size, dtype=torch.uint8, device="cuda")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.timed and self.device == "cuda":
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            result = func(*args, **(kwargs or {}))
            after.record()
            self.spans.append((before, after))
        else:
            inputs = [described(one) for one in args]
            options = {key: described(one) for key, one in (kwargs or {}).items()}
            self.mark(BEGIN)
            result = func(*args, **(kwargs or {}))
            self.mark(END)
            thread = self.threads.setdefault(threading.get_ident(), len(self.threads))
            self.ops.append(
                {
                    "op": str(func),
                    "in": inputs,
                    "options": options,
                    "out": described(result),
                    "out_bytes": results_bytes(result),
                    "thread": thread,
                    "allocs": [],
                    "us": None,
                }
            )
        return result

    def history(self) -> list[dict[str, Any]]:
        if self.device != "cuda":
            return []
        torch.cuda.synchronize()
        traces: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(None)
        return traces

    def finish(self) -> list[list[Any]]:
        """Gives each operator its allocations, [bytes, freed inside or not]; returns the events for a comparison.

        An event is ["a", block, bytes, operator], ["f", block, operator], ["s", bytes, operator] (a segment taken),
        ["r", bytes, operator] (one given back) or ["o", operator] (it is done); an operator of -1 is none.
        """
        events: list[list[Any]] = []
        history = self.history()
        marked = sum(entry["action"] == "alloc" and entry["size"] == BEGIN for entry in history)
        # What an earlier recording may have left at the front is counted below zero.
        inside, current, made = False, len(self.ops) - marked - 1, 0
        live: dict[int, int] = {}
        within: dict[int, list[Any]] = {}
        for entry in history:
            action, size, address = entry["action"], entry["size"], entry["addr"]
            if action == "alloc" and size == BEGIN and not inside:
                inside, current = True, current + 1
                within = {}
            elif action == "alloc" and size == END and inside:
                inside = False
                events.append(["o", current])
            elif action == "alloc":
                live[address] = made
                events.append(["a", made, size, current if inside else -1])
                made += 1
                if not inside:
                    self.outside.append([size, current])
                elif 0 <= current < len(self.ops):
                    within[address] = [size, False]
                    self.ops[current]["allocs"].append(within[address])
            elif action == "free_completed" and address in live:
                events.append(["f", live.pop(address), current if inside else -1])
                if inside and address in within:
                    within.pop(address)[1] = True
            elif action in ("segment_alloc", "segment_map"):
                events.append(["s", size, current if inside else -1])
            elif action in ("segment_free", "segment_unmap"):
                events.append(["r", size, current if inside else -1])
        return events

    def times_us(self) -> list[float]:
        if self.spans:
            torch.cuda.synchronize()
        return [round(1e3 * before.elapsed_time(after), 2) for before, after in self.spans]


def unique(ops: list[Op]) -> list[Op]:
    """The operators that differ in anything but their time, with how often each came and the median time."""
    import json

    seen: dict[str, Op] = {}
    times: dict[str, list[float]] = {}
    for op in ops:
        key = json.dumps({name: value for name, value in op.items() if name != "us"}, sort_keys=True, default=str)
        if key not in seen:
            seen[key] = {**op, "n": 0}
        seen[key]["n"] += 1
        if op["us"] is not None:
            times.setdefault(key, []).append(op["us"])
    for key, found in times.items():
        seen[key]["us"] = sorted(found)[len(found) // 2]
    return list(seen.values())
