"""Single operators that the model of step times is learnt from; `gpu/fit_times.py` measures them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Work = Callable[[], Any]


def convolutions() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Forms that the calibration models lack: one filter a channel, groups, few channels, transposed, one dimension."""
    for batch, cin, cout, kernel, stride, size, groups in (
        (32, 96, 96, 7, 1, 56, 96),
        (32, 384, 384, 7, 1, 14, 384),
        (64, 32, 32, 3, 1, 112, 32),
        (64, 144, 144, 3, 2, 56, 144),
        (64, 480, 480, 5, 1, 14, 480),
        (32, 216, 216, 3, 1, 28, 9),
        (32, 576, 576, 3, 1, 14, 24),
        (32, 3, 64, 7, 2, 224, 1),
        (32, 3, 96, 4, 4, 224, 1),
        (32, 128, 256, 1, 2, 56, 1),
        (32, 256, 256, 3, 1, 28, 1),
        (8, 128, 128, 3, 1, 32, 1),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(batch, cin, size, size, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(cout, cin // groups, kernel, kernel, device="cuda", dtype=dtype, requires_grad=True)
            run = functools.partial(
                F.conv2d, x, w, stride=stride, padding=kernel // 2 if stride < 4 else 0, groups=groups
            )
            what = {"x": list(x.shape), "w": list(w.shape), "stride": stride, "groups": groups, "dtype": str(dtype)[6:]}
            yield from both("conv", what, run, (x, w))
    for batch, cin, cout, kernel, size in ((64, 128, 64, 4, 32), (64, 256, 128, 4, 16)):
        x = torch.randn(batch, cin, size, size, device="cuda", requires_grad=True)
        w = torch.randn(cin, cout, kernel, kernel, device="cuda", requires_grad=True)
        run = functools.partial(F.conv_transpose2d, x, w, stride=2, padding=1)
        yield from both("conv transposed", {"x": list(x.shape), "w": list(w.shape)}, run, (x, w))


def pictures() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """What models of small convolutions do beside those: channels last, pointwise with few channels, norms, groups."""
    for batch, cin, cout, kernel, stride, size, groups, order in (
        (32, 96, 96, 7, 1, 56, 96, "last"),
        (32, 384, 384, 7, 1, 14, 384, "last"),
        (64, 32, 32, 3, 1, 112, 32, "last"),
        (128, 240, 240, 3, 2, 28, 240, "first"),
        (128, 16, 64, 1, 1, 112, 1, "first"),
        (128, 64, 24, 1, 1, 56, 1, "first"),
        (128, 72, 24, 1, 1, 56, 1, "first"),
        (64, 96, 24, 1, 1, 56, 1, "first"),
        (128, 480, 112, 1, 1, 14, 1, "first"),
        (32, 72, 72, 3, 1, 56, 3, "first"),
        (32, 216, 216, 3, 2, 56, 9, "first"),
        (32, 256, 256, 3, 1, 28, 32, "first"),
    ):
        x = torch.randn(batch, cin, size, size, device="cuda", requires_grad=True)
        w = torch.randn(cout, cin // groups, kernel, kernel, device="cuda", requires_grad=True)
        if order == "last":
            x, w = (one.detach().to(memory_format=torch.channels_last).requires_grad_() for one in (x, w))
        run = functools.partial(F.conv2d, x, w, stride=stride, padding=kernel // 2, groups=groups)
        what = {"x": list(x.shape), "w": list(w.shape), "stride": stride, "groups": groups, "dtype": "float32"}
        yield from both("conv", {**what, "channels": order}, run, (x, w))
    for shape in ((128, 16, 112, 112), (128, 240, 28, 28), (32, 96, 56, 56)):
        x = torch.randn(shape, device="cuda", requires_grad=True)
        norm = nn.BatchNorm2d(shape[1]).cuda()
        yield from both("batch_norm", {"x": list(shape)}, functools.partial(norm, x), (x, norm.weight, norm.bias))
        yield from both("hardswish", {"x": list(shape)}, functools.partial(F.hardswish, x), (x,))
        yield from both("silu", {"x": list(shape)}, functools.partial(F.silu, x), (x,))
        yield from both("mean of pixels", {"x": list(shape)}, lambda x=x: x.mean((2, 3)), (x,))
        scale = torch.randn(*shape[:2], 1, 1, device="cuda", requires_grad=True)
        yield from both("scaled channels", {"x": list(shape)}, lambda x=x, scale=scale: x * scale, (x, scale))
        last = x.detach().permute(0, 2, 3, 1)
        weight = torch.ones(shape[1], device="cuda")
        yield (
            "layer_norm across",
            {"x": list(shape)},
            functools.partial(F.layer_norm, last, (shape[1],), weight, weight),
        )
        yield "add across", {"x": list(shape)}, lambda last=last: last + last.contiguous()


def both(
    name: str, what: dict[str, Any], run: Work, inputs: tuple[Any, ...]
) -> Iterator[tuple[str, dict[str, Any], Work]]:
    """An operator, and its gradients."""
    with torch.no_grad():
        yield name, what, run
    out = run()
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.randn_like(out)
    yield f"{name} backward", what, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def others() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Products of few rows, recurrent layers, norms, tables."""
    for rows, inner, columns in (
        (512, 1024, 1024), (1024, 1024, 1024), (1024, 1024, 4096), (1024, 4096, 1024), (1024, 2048, 5632),
        (128, 1024, 50257), (6304, 768, 768), (6304, 768, 3072), (6272, 768, 3072), (196, 3136, 256),
    ):  # fmt: skip
        for dtype in (torch.float32, torch.bfloat16):
            x, w = (
                torch.randn(rows, inner, device="cuda", dtype=dtype),
                torch.randn(columns, inner, device="cuda", dtype=dtype),
            )
            g = torch.randn(rows, columns, device="cuda", dtype=dtype)
            what = {"m": rows, "n": columns, "k": inner, "dtype": str(dtype)[6:]}
            yield "linear", what, lambda x=x, w=w: x @ w.t()
            yield "linear of the input", what, lambda g=g, w=w: g @ w
            yield "linear of the weight", what, lambda g=g, x=x: g.t() @ x
    for batch, length, width, layers in ((16, 64, 512, 2), (32, 64, 512, 2), (32, 128, 512, 1), (32, 128, 1024, 1)):
        for kind in (nn.LSTM, nn.GRU):
            net = kind(width, width, layers).cuda()
            x = torch.randn(length, batch, width, device="cuda", requires_grad=True)
            what = {"batch": batch, "length": length, "width": width, "layers": layers}
            yield from both(kind.__name__.lower(), what, functools.partial(net, x), (x, *net.parameters()))
    for rows, columns in ((1024, 1024), (8192, 1024), (8192, 4096)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, columns, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.ones(columns, device="cuda", dtype=dtype, requires_grad=True)
            what = {"rows": rows, "columns": columns, "dtype": str(dtype)[6:]}
            yield from both("layer_norm", what, functools.partial(F.layer_norm, x, (columns,), w, w), (x, w))
            yield from both("softmax", what, functools.partial(F.softmax, x, -1), (x,))
            yield from both("gelu", what, functools.partial(F.gelu, x), (x,))
            yield "add", what, lambda x=x: x.detach() + x.detach()
            yield "transposed clone", what, lambda x=x: x.detach().t().contiguous()
    for words, width, tokens in ((50257, 1024, 1024), (50257, 1024, 8192), (32000, 2048, 4096)):
        table = torch.randn(words, width, device="cuda", requires_grad=True)
        ids = torch.randint(0, words, (tokens,), device="cuda")
        yield from both(
            "embedding",
            {"words": words, "width": width, "tokens": tokens},
            functools.partial(F.embedding, ids, table),
            (table,),
        )


def tables() -> Iterator[tuple[str, dict[str, Any], Work]]:
    """Heads as wide as odd vocabularies, sums of rows of tables, and products of experts."""
    for rows, inner, columns in ((8192, 1024, 50257), (4096, 1024, 30522), (8192, 1024, 50264), (2048, 1022, 4096)):
        x = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(columns, inner, device="cuda", dtype=torch.bfloat16)
        g = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        what = {"m": rows, "n": columns, "k": inner, "dtype": "bfloat16"}
        yield "linear", what, lambda x=x, w=w: x @ w.t()
        yield "linear of the input", what, lambda g=g, w=w: g @ w
        yield "linear of the weight", what, lambda g=g, x=x: g.t() @ x
    for words, width, bags, each in ((85000, 64, 8192, 4), (1000, 64, 8192, 4), (85000, 64, 32768, 4)):
        table = torch.randn(words, width, device="cuda", requires_grad=True)
        ids = torch.randint(0, 1000, (bags, each), device="cuda")
        what = {"words": words, "width": width, "bags": bags, "each": each}
        yield from both("embedding_bag", what, functools.partial(F.embedding_bag, ids, table, mode="sum"), (table,))
    pairs = torch.randn(8192, 17, 17, device="cuda", requires_grad=True)
    row, column = torch.tril_indices(17, 17, -1, device="cuda")
    yield from both("index", {"x": [8192, 17, 17]}, lambda: pairs[:, row, column], (pairs,))
    for rows, inner, columns, experts in ((4096, 768, 4096, 8), (4096, 2048, 768, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(rows, inner, device="cuda", dtype=dtype, requires_grad=True)
            w = torch.randn(experts, inner, columns, device="cuda", dtype=dtype, requires_grad=True)
            ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (rows // experts)
            what = {"rows": rows, "inner": inner, "columns": columns, "experts": experts, "dtype": str(dtype)[6:]}
            yield from both("grouped_mm", what, functools.partial(torch._grouped_mm, x, w, offs=ends), (x, w))
