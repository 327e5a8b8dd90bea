"""Batches at other sizes, without a model."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuheap._fit.batches import describe, resized, size_of  # noqa: E402


def scenes(count: int) -> dict[str, Any]:
    boxes = {"boxes": torch.zeros(3, 4), "labels": torch.zeros(3, dtype=torch.long)}
    return {"images": [torch.zeros(3, 8, 8) for _ in range(count)], "targets": [dict(boxes) for _ in range(count)]}


def test_lists_of_samples_are_as_many_as_they_are() -> None:
    batch = scenes(2)
    pair = (batch["images"], batch["targets"])
    assert size_of(batch) == size_of(pair) == describe(batch)["size"] == 2
    larger, smaller = resized(batch, 5), resized(pair, 1)
    assert [len(one) for one in larger.values()] == [5, 5] and [len(one) for one in smaller] == [1, 1]
    assert size_of(larger) == 5 and size_of(smaller) == 1 and isinstance(smaller, tuple)
    assert larger["images"][4].shape == (3, 8, 8)


def test_a_list_of_fields_is_no_list_of_samples() -> None:
    fields = {"inputs": [torch.zeros(16, 4), torch.zeros(16, 4)], "label": torch.zeros(16)}
    assert size_of(fields) == 16
    assert resized(fields, 8)["inputs"][1].shape == (8, 4)
