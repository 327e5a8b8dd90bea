"""Weights that are stored in parts: masks of `torch.nn.utils.prune`, and parametrizations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.subject import Subject
from gpuheap._names import _table
from gpuheap._objects import instance_dict, is_instance
from gpuheap._tensors import storages_of

__all__ = ["find"]

_NAMED = 4


def find(subject: Subject) -> tuple[list[Finding], list[Finding]]:
    """Findings, and information."""
    findings: list[Finding] = []
    information: list[Finding] = []
    masks = list(_masks(subject))
    if masks:
        weights = sum(weight for _, weight, _ in masks)
        extra = sum(extra for _, _, extra in masks)
        findings.append(
            Finding(
                kind="pruning_masks",
                title=f"pruning keeps {len(masks)} weights three times: original, mask and product",
                bytes=extra,
                evidence=(
                    _names([name for name, _, _ in masks]),
                    f"{bytes_text(weights)} of weights take {bytes_text(extra)} more for masks and products",
                    "the product is made anew in every forward pass",
                ),
                remedy="When pruning is done, make it permanent: `torch.nn.utils.prune.remove(module, name)`. Zeros "
                "are "
                "stored like other numbers: pruning by masks saves no memory.",
            )
        )
    parts = list(_parametrizations(subject))
    if parts:
        weights = sum(weight for _, weight, _ in parts)
        extra = sum(extra for _, _, extra in parts)
        finding = Finding(
            kind="parametrizations",
            title=f"{len(parts)} weights are parametrized: made anew at each use",
            bytes=max(0, extra),
            evidence=(
                _names([name for name, _, _ in parts]),
                f"{bytes_text(weights)} of weights are stored as {bytes_text(weights + extra)} of parts, and each use "
                "makes the weight beside them",
            ),
            remedy="When it has done its work, call "
            "`torch.nn.utils.parametrize.remove_parametrizations(module, name)`; for several uses in one pass, "
            "`parametrize.cached()` makes the weight once.",
            confidence="medium",
        )
        # A norm's vector beside a weight is no matter; a mask, or a second matrix, is.
        (findings if 2 * extra >= weights else information).append(finding)
    return findings, information


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _size(torch: Any, tensor: Any) -> int:
    return sum(one.bytes for one in storages_of(torch, tensor)) if is_instance(tensor, torch.Tensor) else 0


def _masks(subject: Subject) -> Iterator[tuple[str, int, int]]:
    """Name, bytes of the weight, bytes of mask and product."""
    torch = subject.torch
    for prefix, module in subject.modules():
        parameters, buffers = _table(module, "_parameters"), _table(module, "_buffers")
        for key, mask in list(buffers.items()):
            name = str(key).removesuffix("_mask")
            original = parameters.get(f"{name}_orig")
            if name == key or original is None or mask is None or mask.shape != original.shape:
                continue
            product = (instance_dict(module) or {}).get(name)
            extra = _size(torch, mask) + (_size(torch, product) if product is not None else 0)
            yield f"{prefix}.{name}" if prefix else name, _size(torch, original), extra


def _parametrizations(subject: Subject) -> Iterator[tuple[str, int, int]]:
    """Name, bytes of the weight, bytes of its parts beyond that."""
    torch = subject.torch
    for prefix, module in subject.modules():
        lists = _table(module, "_modules").get("parametrizations")
        if lists is None or not is_instance(lists, torch.nn.ModuleDict):
            continue
        for key, chain in list(_table(lists, "_modules").items()):
            originals = [
                tensor
                for name, tensor in [*_table(chain, "_parameters").items(), *_table(chain, "_buffers").items()]
                if str(name).startswith("original") and tensor is not None
            ]
            if not originals:
                continue
            weight = max(_size(torch, tensor) for tensor in originals)
            inside = Subject(torch, [chain])
            stored = sum(
                {one.key: one.bytes for *_, tensor in inside.tensors() for one in storages_of(torch, tensor)}.values()
            )
            yield f"{prefix}.{key}" if prefix else str(key), weight, stored - weight
