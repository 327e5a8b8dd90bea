"""How fast the device is at what models do: points for a roofline, each the median of a few timed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from fit_device import Clock, Gpu, limit, reason

Point = tuple[str, dict[str, Any], float, float, Callable[[], Any]]
"""Name, parameters, floating-point operations, bytes read and written, and the work."""
WARM, TIMED = 3, 7


def median_us(gpu: Gpu, work: Callable[[], Any]) -> float:
    for _ in range(WARM):
        work()
    gpu.synchronize()
    spent: list[float] = []
    for _ in range(TIMED):
        if gpu.name == "cuda":
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            work()
            after.record()
            after.synchronize()
            spent.append(1e3 * before.elapsed_time(after))
        else:
            begun = time.perf_counter()
            work()
            spent.append(1e6 * (time.perf_counter() - begun))
    return sorted(spent)[TIMED // 2]


def points(device: str, largest: int) -> Iterator[Point]:
    kinds = (("fp32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False))
    for name, dtype, tf32 in kinds:
        for size in (256, 512, 1024, 2048, 4096, 8192):
            if size <= largest:
                a = torch.randn(size, size, device=device, dtype=dtype)

                def product(a: torch.Tensor = a, tf32: bool = tf32) -> None:
                    torch.backends.cuda.matmul.allow_tf32 = tf32
                    torch.mm(a, a)
                    torch.backends.cuda.matmul.allow_tf32 = False

                yield "mm", {"math": name, "m": size, "n": size, "k": size}, 2.0 * size**3, 3.0 * a.nbytes, product
        for rows, inner, columns in ((8192, 768, 3072), (8192, 1024, 1024), (4096, 2048, 5632), (16384, 768, 768)):
            if rows <= 4 * largest:
                x = torch.randn(rows, inner, device=device, dtype=dtype)
                w = torch.randn(inner, columns, device=device, dtype=dtype)
                moved = float(x.nbytes + w.nbytes + rows * columns * x.element_size())

                def layer(x: torch.Tensor = x, w: torch.Tensor = w, tf32: bool = tf32) -> None:
                    torch.backends.cuda.matmul.allow_tf32 = tf32
                    torch.mm(x, w)
                    torch.backends.cuda.matmul.allow_tf32 = False

                yield (
                    "mm",
                    {"math": name, "m": rows, "n": columns, "k": inner},
                    2.0 * rows * inner * columns,
                    moved,
                    layer,
                )
    for power in (12, 16, 20, 22, 24, 26, 28):
        if 1 << power <= largest * 32768:
            x = torch.randn(1 << power, device=device)
            out = torch.empty_like(x)
            yield "add", {"n": 1 << power}, float(1 << power), 3.0 * x.nbytes, lambda x=x, o=out: torch.add(x, x, out=o)
            yield "copy", {"n": 1 << power}, 0.0, 2.0 * x.nbytes, lambda x=x, o=out: o.copy_(x)
            yield "gelu", {"n": 1 << power}, 0.0, 2.0 * x.nbytes, lambda x=x: F.gelu(x)
            yield "sum", {"n": 1 << power}, 0.0, 1.0 * x.nbytes, lambda x=x: x.sum()
    for dtype in (torch.float32, torch.bfloat16):
        for batch, heads, length, width in ((16, 12, 512, 64), (4, 16, 1024, 64), (2, 32, 2048, 64), (64, 12, 197, 64)):
            if batch * length <= 8 * largest:
                q = torch.randn(batch, heads, length, width, device=device, dtype=dtype, requires_grad=True)
                flops = 4.0 * batch * heads * length * length * width
                what = {"dtype": str(dtype)[6:], "b": batch, "h": heads, "s": length, "d": width}
                for causal in (False, True):
                    forward = lambda q=q, c=causal: F.scaled_dot_product_attention(q, q, q, is_causal=c)  # noqa: E731
                    both = lambda f=forward: f().sum().backward()  # noqa: E731
                    work = flops / 2 if causal else flops
                    yield "sdpa", {**what, "causal": causal}, work, 4.0 * q.nbytes, forward
                    yield "sdpa forward and backward", {**what, "causal": causal}, 3.5 * work, 12.0 * q.nbytes, both
    for dtype in (torch.float32, torch.bfloat16):
        for form in (torch.contiguous_format, torch.channels_last):
            for channels, outputs, kernel, size in (
                (64, 64, 3, 56),
                (256, 64, 1, 56),
                (256, 256, 3, 14),
                (128, 128, 3, 64),
            ):
                batch = 64 if largest > 1000 else 2
                x = torch.randn(batch, channels, size, size, device=device, dtype=dtype).to(memory_format=form)
                w = torch.randn(outputs, channels, kernel, kernel, device=device, dtype=dtype).to(memory_format=form)
                flops = 2.0 * batch * outputs * channels * kernel**2 * size**2
                moved = float(x.nbytes + w.nbytes + x.nbytes * outputs // channels)
                what = {
                    "dtype": str(dtype)[6:],
                    "form": str(form)[6:],
                    "c": channels,
                    "o": outputs,
                    "k": kernel,
                    "hw": size,
                }
                yield "conv", what, flops, moved, lambda x=x, w=w, k=kernel: F.conv2d(x, w, padding=k // 2)
                x_, w_ = x.detach().requires_grad_(), w.detach().requires_grad_()
                both = lambda x=x_, w=w_, k=kernel: F.conv2d(x, w, padding=k // 2).sum().backward()  # noqa: E731
                yield "conv forward and backward", what, 3 * flops, 3 * moved, both
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(8192 if largest > 1000 else 64, 1024, device=device, dtype=dtype)
        weight = torch.ones(1024, device=device, dtype=dtype)
        what = {"dtype": str(dtype)[6:], "rows": x.shape[0], "columns": 1024}
        yield "layer_norm", what, 0.0, 2.0 * x.nbytes, lambda x=x, w=weight: F.layer_norm(x, (1024,), w, w)
        yield "softmax", what, 0.0, 2.0 * x.nbytes, lambda x=x: x.softmax(-1)
        yield "dropout", what, 0.0, 2.25 * x.nbytes, lambda x=x: F.dropout(x, 0.1)


def host(put: Callable[..., None], gpu: Gpu) -> None:
    """Launches are asynchronous: what an operator costs the program's thread, and what a copy from the host costs."""
    x = torch.randn(16, device=gpu.name)
    for name, work in (("add", lambda: x + x), ("mm", lambda: x[None] @ x[:, None]), ("add_", lambda: x.add_(1))):
        for _ in range(50):
            work()
        gpu.synchronize()
        begun = time.perf_counter()
        for _ in range(500):
            work()
        put(kind="roofline", name=f"launch {name}", us=round(1e6 * (time.perf_counter() - begun) / 500, 3))
        gpu.synchronize()
    if gpu.name == "cuda":
        there = torch.empty(1 << 28, dtype=torch.uint8, device=gpu.name)
        for kind, here in (
            ("pinned", torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)),
            ("pageable", there.cpu()),
        ):
            for way, work in (("to device", lambda h=here: there.copy_(h)), ("to host", lambda h=here: h.copy_(there))):
                put(kind="roofline", name=f"copy {way} {kind}", bytes=1 << 28, us=round(median_us(gpu, work), 1))


def roofline(put: Callable[..., None], gpu: Gpu, clock: Clock) -> None:
    host(put, gpu)
    for name, what, flops, moved, work in points(gpu.name, 8192 if gpu.name == "cuda" else 256):
        if clock.left() < 1:
            put(kind="note", roofline="time is up")
            return
        try:
            with limit(5.0):
                spent = median_us(gpu, work)
            put(kind="roofline", name=name, **what, flops=flops, bytes=moved, us=round(spent, 2))
        except Exception as error:  # a kernel that this device lacks
            put(kind="roofline", name=name, **what, error=reason(error))
