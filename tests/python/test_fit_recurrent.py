"""What recurrent layers take of a GPU beside their results, against what single layers took on an H200."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuheap._fit import recurrent

MIB = 1 << 20
MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}
MEASURED: tuple[tuple[Any, ...], ...] = (
    # Kind, inputs, hidden, layers, both directions, batch, steps, dropout, type: scratch memory in training and in
    # evaluation, and the reserve, in MiB.
    ("LSTM", 512, 1024, 2, False, 16, 128, 0.0, "float32", 117.25, 117.25, 88.0),
    ("LSTM", 512, 1024, 2, False, 64, 64, 0.0, "bfloat16", 90.5, 90.5, 88.0),
    ("LSTM", 256, 512, 1, True, 16, 128, 0.0, "float32", 86.75, 86.75, 40.0),
    ("LSTM", 256, 512, 1, True, 64, 64, 0.0, "float16", 81.5, 81.5, 40.0),
    ("GRU", 512, 1024, 1, False, 16, 128, 0.0, "float32", 66.31, 62.31, 48.0),
    ("GRU", 512, 1024, 1, False, 64, 64, 0.0, "bfloat16", 57.63, 53.63, 48.0),
    ("GRU", 128, 512, 3, True, 32, 128, 0.0, "float32", 194.12, 192.12, 320.0),
    ("GRU", 128, 512, 3, True, 64, 64, 0.0, "float16", 122.38, 121.38, 160.0),
    ("GRU", 128, 512, 3, True, 16, 256, 0.3, "float32", 192.81, 190.81, 322.0),
    ("RNN", 256, 256, 2, False, 32, 128, 0.0, "float32", 81.38, None, 12.0),
)


@pytest.mark.parametrize("row", MEASURED)
def test_layers_take_what_a_device_took(row: tuple[Any, ...]) -> None:
    kind, inputs, hidden, layers, both, batch, steps, dropout, dtype, train, evaluation, reserve = row
    layer = getattr(torch.nn, kind)(inputs, hidden, layers, batch_first=True, bidirectional=both)
    weights = list(layer.to("meta", getattr(torch, dtype)).parameters())
    x = torch.empty(batch, steps, inputs, dtype=getattr(torch, dtype), device="meta")
    for is_training, real in ((True, train), (False, evaluation)):
        args = [
            x,
            weights,
            4,
            None,
            None,
            None,
            MODES[kind],
            hidden,
            0,
            layers,
            True,
            dropout,
            is_training,
            both,
            [],
            None,
        ]
        if real is not None:
            assert abs(recurrent._workspace(args) / MIB - real) < 0.01
        assert abs(recurrent._reserve(args) / MIB - reserve) < 0.01
