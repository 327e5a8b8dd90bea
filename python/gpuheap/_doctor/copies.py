"""A second copy of the weights somewhere in the process: a model loaded twice, a checkpoint still in memory.

Candidates are tensors of the shape and type of a parameter that are no part of the model, its gradients or its
optimizer. A copy that the steps use (a teacher, a target network, an average of the weights) is not wasted, so the
judgement comes after the steps.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.subject import Subject
from gpuheap._names import _table, live_modules
from gpuheap._objects import class_name, is_instance
from gpuheap._tensors import storages_of
from gpuheap._tracker import weak_storage
from gpuheap.holders import holders

__all__ = ["Copies", "same_within"]

_SHARE = 0.5
_SECONDS = 20.0
_COMPARE_SECONDS = 30.0


@dataclass(slots=True)
class _Copy:
    what: str
    """`module` or `dictionary`."""
    name: str
    keys: tuple[int, ...]
    address: int
    bytes: int
    equal: int
    """How many tensors have the very content of the model's."""
    tensors: int
    averaged: bool
    weak: Any
    """Of its largest storage: while it lives no other storage has its key."""


class Copies:
    """Looks before the steps, and judges after them."""

    def __init__(self, subject: Subject, owned: frozenset[int]) -> None:
        """Finds the candidates."""
        self._subject = subject
        self._torch = subject.torch
        self._deadline = time.monotonic() + _COMPARE_SECONDS
        self._owned = owned
        self._own = {name: tensor for name, buffer, _, tensor in subject.tensors() if not buffer}
        self.model_bytes = sum(
            {one.key: one.bytes for tensor in self._own.values() for one in storages_of(self._torch, tensor)}.values()
        )
        self._found: list[_Copy] = []
        if self.model_bytes:
            self._found += self._modules()
            self._found += self._dictionaries({key for one in self._found for key in one.keys})
        self._own.clear()

    @property
    def keys(self) -> frozenset[int]:
        """Storages of which it must be known whether the steps use them."""
        return frozenset(key for one in self._found for key in one.keys)

    def _modules(self) -> list[_Copy]:
        inside = {id(module) for _, module in self._subject.modules()}
        found = []
        children: set[int] = set()
        modules = live_modules(self._torch)
        for module in modules:
            children.update(id(child) for child in _table(module, "_modules").values() if child is not None)
        for module in modules:
            # A wrapper around the model, such as DistributedDataParallel, has the model's own parameters.
            if id(module) in inside or id(module) in children:
                continue
            tensors = {name: one for name, buffer, _, one in Subject(self._torch, [module]).tensors() if not buffer}
            averaged = "Averaged" in class_name(type(module)) or "EMA" in class_name(type(module)).upper()
            copy = self._compare("module", class_name(type(module)), tensors, averaged)
            if copy is not None:
                found.append(copy)
        return found

    def _dictionaries(self, taken: set[int]) -> list[_Copy]:
        found: list[_Copy] = []
        wanted = set(self._own)
        for value in gc.get_objects():
            if not is_instance(value, dict) or not len(wanted) <= 2 * dict.__len__(value) <= 200_000:
                continue
            names = [key for key in list(dict.keys(value)) if type(key) is str]
            # Names as `state_dict()` gives them, perhaps behind the prefix of a wrapper.
            known = {name: _plain(name, wanted) for name in names}
            if 2 * sum(1 for name in known.values() if name is not None) < len(wanted):
                continue
            tensors = {
                own: dict.get(value, name)
                for name, own in known.items()
                if own is not None and is_instance(dict.get(value, name), self._torch.Tensor)
            }
            copy = self._compare("dictionary", class_name(type(value)), tensors, averaged=False)
            if copy is not None and not taken.intersection(copy.keys):
                taken.update(copy.keys)
                found.append(copy)
        return found

    def _compare(self, what: str, name: str, tensors: dict[str, Any], averaged: bool) -> _Copy | None:
        sizes: dict[int, int] = {}
        address = equal = matched = largest = 0
        weak: Any = None
        own_by_shape = {(tuple(one.shape), one.dtype) for one in self._own.values()}
        devices = {one.device.type for one in self._own.values()}
        for key, tensor in tensors.items():
            if tensor.device.type not in devices or (tuple(tensor.shape), tensor.dtype) not in own_by_shape:
                continue
            storages = [one for one in storages_of(self._torch, tensor) if one.key not in self._owned and one.bytes]
            if not storages:
                continue
            matched += 1
            sizes.update((one.key, one.bytes) for one in storages)
            if storages[0].bytes > largest:
                largest, address = storages[0].bytes, storages[0].address
                weak = weak_storage(self._torch, tensor, storages[0].key)
            equal += self._equal(self._own.get(key), tensor)
        taken = sum(sizes.values())
        if not matched or taken < _SHARE * self.model_bytes:
            return None
        return _Copy(what, name, tuple(sizes), address, taken, equal, matched, averaged, weak)

    def _equal(self, own: Any, other: Any) -> bool:
        if own is None or own.shape != other.shape or own.device != other.device or time.monotonic() > self._deadline:
            return False
        try:
            with self._torch.no_grad():
                return bool(self._torch.equal(own.detach(), other.detach()))
        except Exception:  # quantized and sparse ones cannot be compared
            return False

    def judge(self, used: set[int]) -> tuple[list[Finding], list[Finding]]:
        """Findings, and information. `used` are the keys that an operation of the steps has used."""
        findings: list[Finding] = []
        information: list[Finding] = []
        for copy in self._found:
            if copy.weak is not None and copy.weak.expired():
                continue
            in_use = sum(1 for key in copy.keys if key in used)
            held = [
                holder.path
                for holder in (holders(copy.address, limit=2, budget=_SECONDS) if copy.address else ())
                if holder.root != "unseen"
            ][:2]
            finding = self._finding(copy, in_use, tuple(held))
            wasted = 2 * copy.equal >= copy.tensors and not in_use and not copy.averaged
            (findings if wasted else information).append(finding)
        return findings, information

    def _finding(self, copy: _Copy, in_use: int, held: tuple[str, ...]) -> Finding:
        content = (
            f"{copy.equal} of its {copy.tensors} weights had the very content of the model's before the steps"
            if copy.equal
            else "its content differs from the model's"
        )
        use = "no operation of the steps used it" if not in_use else "the steps use it"
        if copy.what == "module":
            title = f"a second {copy.name} with the weights of the model is alive"
            remedy = "Drop it (`del`), or keep it on the host (`.cpu()`) until it is needed."
        else:
            title = "the weights are in memory a second time, as a state dict"
            remedy = (
                "Drop the checkpoint after `load_state_dict` (`del checkpoint`), load it with `map_location='cpu'`, "
                "or with "
                "`load_state_dict(..., assign=True)`, which takes its tensors instead of copying them."
            )
        return Finding(
            kind="second_copy" if copy.what == "module" else "checkpoint_kept",
            title=title,
            bytes=copy.bytes,
            holders=held,
            evidence=(
                f"it takes {bytes_text(copy.bytes)} beside the model's {bytes_text(self.model_bytes)}",
                content,
                use,
            ),
            remedy=remedy,
            confidence="high" if copy.equal == copy.tensors and not in_use else "medium",
        )


def _plain(name: str, wanted: set[str]) -> str | None:
    while name and name not in wanted:
        name = name.partition(".")[2]
    return name or None


def same_within(subject: Subject) -> list[Finding]:
    """Weights of the model that have the same content in two places, although training would have told them apart.

    Asked after the steps: layers that are made as copies of each other (`nn.TransformerEncoder`) differ by then.
    """
    torch = subject.torch
    groups: dict[Any, list[tuple[str, Any]]] = {}
    for name, _, _, tensor in subject.tensors():
        if tensor.device.type != "meta" and tensor.numel() >= 1024:
            groups.setdefault((tuple(tensor.shape), tensor.dtype, tensor.device), []).append((name, tensor))
    deadline = time.monotonic() + _COMPARE_SECONDS
    twins: list[tuple[str, str, int]] = []
    for members in groups.values():
        first: list[tuple[str, Any]] = []
        for name, tensor in members:
            keys = {one.key for one in storages_of(torch, tensor)}
            for known, other in first:
                shared = keys & {one.key for one in storages_of(torch, other)}
                if shared or not keys or time.monotonic() > deadline:
                    continue
                if _same_content(torch, tensor, other):
                    twins.append((known, name, sum(one.bytes for one in storages_of(torch, tensor))))
                    break
            else:
                if len(first) < 8:
                    first.append((name, tensor))
    taken = sum(size for _, _, size in twins)
    total = sum({one.key: one.bytes for *_, tensor in subject.tensors() for one in storages_of(torch, tensor)}.values())
    if not twins or taken < 0.05 * total:
        return []
    shown = ", ".join(f"`{name}` is `{known}`" for known, name, _ in twins[:4])
    return [
        Finding(
            kind="equal_weights",
            title=f"{len(twins)} tensors of the model have the same content as another one, in memory of their own",
            bytes=taken,
            evidence=(shown, "still so after the steps"),
            remedy="If they are meant to be one, tie them (`decoder.weight = encoder.weight`), or make the table "
            "once and "
            "hand it to all layers.",
            confidence="medium",
        )
    ]


def _same_content(torch: Any, one: Any, other: Any) -> bool:
    try:
        with torch.no_grad():
            one, other = one.detach(), other.detach()
            # All zeros or all ones say nothing.
            return bool(torch.equal(one, other)) and bool((one != one.flatten()[0]).any())
    except Exception:
        return False
