"""The steps that stand for the fast path of evaluated transformer layers: their results are those of the operator."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from gpuheap._fit import fastpath


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_layer_step_by_step_computes_what_the_operator_does(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        32, 4, 64, activation=activation, batch_first=True, norm_first=norm_first
    ).eval()
    x = torch.randn(4, 8, 32)
    operator = torch._transformer_encoder_layer_fwd
    with torch.no_grad():
        real = layer(x)
        with fastpath.decomposed():
            assert torch._transformer_encoder_layer_fwd is not operator
            ours = layer(x)
    assert torch._transformer_encoder_layer_fwd is operator
    assert torch.allclose(real, ours, atol=1e-5)


def test_attention_with_weights_has_the_shapes_of_the_operator() -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 8, 32)
    for average in (True, False):
        with torch.no_grad():
            real = layer(x, x, x, average_attn_weights=average)
            with fastpath.decomposed():
                ours = layer(x, x, x, average_attn_weights=average)
        assert [one.shape for one in real] == [one.shape for one in ours]
