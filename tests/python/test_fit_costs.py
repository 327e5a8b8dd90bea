"""What operators cost, where PyTorch's own formulas lack it or count too high."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuheap._fit.costs import Costs  # noqa: E402

aten = torch.ops.aten


def flops(func: Any, *args: Any, **kwargs: Any) -> int:
    """Of one call, on tensors without data."""
    out = func(*args, **kwargs)
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    results = [one for one in (out if isinstance(out, tuple) else (out,)) if isinstance(one, torch.Tensor)]
    return Costs().of(func, args, kwargs, out, tensors, results)[0]


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_each_gradient_of_a_convolution_costs_what_the_convolution_does(groups: int) -> None:
    x = torch.empty(2, 32, 8, 8, device="meta")
    w = torch.empty(32, 32 // groups, 3, 3, device="meta")
    form = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
    forward = flops(aten.convolution.default, x, w, None, *form)
    assert forward == 2 * 2 * 8 * 8 * 32 * (32 // groups) * 9
    backward = aten.convolution_backward.default
    assert flops(backward, x, x, w, [0], *form, [True, True, False]) == 2 * forward
    assert flops(backward, x, x, w, [0], *form, [False, True, True]) == forward


def test_attention_that_looks_back_only_does_little_more_than_half() -> None:
    func = aten._scaled_dot_product_flash_attention.default
    q = torch.empty(1, 2, 1024, 64, device="meta", dtype=torch.bfloat16)
    whole, causal = (flops(func, q, q, q, 0.0, flag) for flag in (False, True))
    assert whole == 4 * 2 * 1024 * 1024 * 64
    assert 0.5 * whole < causal < 0.7 * whole
    short = torch.empty(1, 2, 64, 64, device="meta", dtype=torch.bfloat16)
    assert flops(func, short, short, short, 0.0, True) == flops(func, short, short, short, 0.0, False)


def test_products_in_groups_cost_what_their_rows_do() -> None:
    if not hasattr(aten, "_grouped_mm"):
        pytest.skip("this PyTorch has no products in groups")
    rows = torch.empty(64, 32, device="meta", dtype=torch.bfloat16)
    weights = torch.empty(4, 32, 16, device="meta", dtype=torch.bfloat16)
    ends = torch.empty(4, device="meta", dtype=torch.int32)
    assert flops(aten._grouped_mm.default, rows, weights, ends) == 2 * 64 * 32 * 16


def test_what_is_read_across_comes_in_whole_pieces() -> None:
    def read(func: Any, *args: Any) -> int:
        out = func(*args)
        return Costs().of(func, args, {}, out, [one for one in args if isinstance(one, torch.Tensor)], [out])[1]

    x = torch.empty(64, 128, device="meta")
    plain = read(aten.clone.default, x)
    assert plain == 64 * 128 * 4
    # A transposed copy keeps its strides when it is cloned, and loses them when it is copied into another.
    assert read(aten.clone.default, x.t()) == plain
    assert read(aten.add.Tensor, x, torch.empty(128, 64, device="meta").t()) == plain + 64 * 128 * 32
    assert read(aten.copy_.default, x, torch.empty(128, 64, device="meta").t()) == plain + 64 * 128 * 32
    # Heads of attention change places with words, and numbers within a head stay next to each other.
    heads = torch.empty(2, 8, 4, 16, device="meta").transpose(1, 2)
    assert read(aten.copy_.default, torch.empty(2, 4, 8, 16, device="meta"), heads) == 2 * heads.numel() * 4
    # A number that stands for all of them is read once.
    assert read(aten.add.Tensor, x, torch.empty(1, 1, device="meta").expand(64, 128)) == plain + 4
