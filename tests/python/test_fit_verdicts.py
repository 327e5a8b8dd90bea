"""What a plan's verdict means for applying it, and what stops a program that never comes to an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpuheap

GIB = 1 << 30
FUSED = {"lever": "optimizer", "form": "fused", "saves_bytes": 0, "costs_us": -10.0}
ALLOCATOR = {"lever": "allocator", "conf": "expandable_segments:True", "saves_bytes": GIB, "costs_us": 0.0}


def plan(*levers: dict[str, Any], **more: Any) -> gpuheap.Plan:
    peak = {"device_bytes": 11 * GIB, "low": 10 * GIB, "high": 12 * GIB, "step_us": 10.0}
    found = {"verdict": "fits", "budget_bytes": 12 * GIB, "peak": peak, "baseline": peak, "plan": list(levers)}
    return gpuheap.Plan({**found, **more})


def test_a_plan_that_does_not_fit_is_not_applied() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    too_large = plan(FUSED, verdict="does_not_fit", smallest_budget_bytes=14 * GIB)
    with pytest.raises(gpuheap.Error, match=r"does not fit in 12.0 GiB .* the smallest budget that works is 14.0 GiB"):
        too_large.apply(model, optimizer)
    assert not optimizer.param_groups[0]["fused"]
    too_large.apply(model, optimizer, force=True)
    assert optimizer.param_groups[0]["fused"]


def test_the_text_says_what_is_by_rules() -> None:
    by_rules, traced = plan(FUSED, ALLOCATOR, peak_from="rules"), plan(FUSED, peak_from="trace")
    assert by_rules.explain().startswith("FITS BY RULES in 12.0 GiB") and by_rules.peak_from == "rules"
    assert traced.explain().startswith("FITS in 12.0 GiB") and traced.peak_from == "trace"
    # One change has nothing to overlap with.
    assert "do not add up" in by_rules.explain() and "do not add up" not in traced.explain()
    assert plan(peak_from="rules").explain().startswith("FITS in"), "as it is it was traced"


def test_a_program_without_an_end_is_ended(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "endless.py"
    program.write_text("def make():\n    while True:\n        pass\n")
    with pytest.raises(gpuheap.Error, match="longer than 8 s"):
        gpuheap.fit(f"{program}:make", timeout=8)


def test_state_of_few_bits_is_state() -> None:
    """What holds the numbers is within a tensor that has none itself."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("gpuheap._fit.storages")
    from gpuheap._fit.storages import pieces

    class Few(torch.Tensor):  # type: ignore[misc, name-defined, valid-type]
        @staticmethod
        def __new__(cls, codes: Any, scale: Any) -> Any:
            made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
            made.codes, made.scale = codes, scale
            return made

        def __tensor_flatten__(self) -> Any:
            return ["codes", "scale"], None

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(f"{func} is not asked of what only holds others")

    codes, scale = torch.zeros(8, dtype=torch.uint8), torch.zeros(1)
    assert [id(one) for one in pieces(Few(codes, scale))] == [id(codes), id(scale)]
    assert [id(one) for one in pieces(scale)] == [id(scale)]
    assert list(pieces(3)) == []
