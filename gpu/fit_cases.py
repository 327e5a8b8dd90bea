"""Single operators whose kernels take memory of their own, over sizes, precisions and layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Case = tuple[str, Callable[[], Any]]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)

CONVOLUTIONS = (
    # channels in, out, kernel, stride, size of the picture, groups: those of ResNet, a UNet, a DCGAN, depthwise ones
    (3, 64, 7, 2, 224, 1),
    (64, 64, 1, 1, 56, 1),
    (64, 64, 3, 1, 56, 1),
    (64, 256, 1, 1, 56, 1),
    (256, 128, 1, 1, 56, 1),
    (128, 128, 3, 2, 56, 1),
    (128, 128, 3, 1, 28, 1),
    (256, 512, 1, 2, 56, 1),
    (256, 256, 3, 1, 14, 1),
    (1024, 256, 1, 1, 14, 1),
    (512, 512, 3, 1, 7, 1),
    (2048, 512, 1, 1, 7, 1),
    (128, 128, 3, 1, 64, 1),
    (256, 256, 3, 1, 32, 1),
    (512, 512, 3, 1, 8, 1),
    (3, 64, 3, 1, 224, 1),
    (64, 128, 4, 2, 64, 1),
    (3, 768, 16, 16, 224, 1),
    (96, 96, 7, 1, 56, 96),
    (240, 240, 5, 1, 28, 240),
    (144, 144, 3, 2, 56, 144),
)


def convolutions(device: str, batches: tuple[int, ...]) -> Iterator[Case]:
    for channels, outputs, kernel, stride, size, groups in CONVOLUTIONS:
        for dtype in FLOATS:
            for form in (torch.contiguous_format, torch.channels_last):
                for batch in batches:

                    def work(
                        shape: Any = (batch, channels, size, size),
                        dtype: Any = dtype,
                        form: Any = form,
                        rest: Any = None,
                    ) -> None:
                        outputs_, kernel_, stride_, groups_ = rest
                        x = torch.randn(shape, device=device, dtype=dtype).to(memory_format=form).requires_grad_()
                        layer = nn.Conv2d(
                            shape[1], outputs_, kernel_, stride_, kernel_ // 2, groups=groups_, bias=False
                        )
                        layer.to(device, dtype, memory_format=form)  # type: ignore[call-overload]
                        (layer(x) * 1.5).sum().backward()

                    rest = (outputs, kernel, stride, groups)
                    label = f"conv {channels}>{outputs} k{kernel} s{stride} {size} g{groups} {dtype} {form} b{batch}"
                    yield label, lambda work=work, rest=rest: work(rest=rest)


ODD_CONVOLUTIONS: tuple[tuple[Any, tuple[int, ...], dict[str, Any]], ...] = (
    # kind of layer, shape of the input but for the batch, the layer's arguments
    (nn.Conv2d, (256, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 2, "dilation": 2}),
    (nn.Conv2d, (512, 32, 32), {"out_channels": 512, "kernel_size": 3, "padding": 4, "dilation": 4}),
    (nn.Conv2d, (1024, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 12, "dilation": 12}),
    (nn.Conv2d, (1024, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 24, "dilation": 24}),
    (nn.Conv2d, (2048, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 12, "dilation": 12}),
    (nn.Conv2d, (2048, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 36, "dilation": 36}),
    (nn.Conv2d, (2048, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (1024, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (256, 32, 32), {"out_channels": 256, "kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (512, 1, 1), {"out_channels": 256, "kernel_size": 1}),
    (nn.Conv2d, (256, 28, 28), {"out_channels": 256, "kernel_size": 3, "padding": 1, "groups": 32}),
    (nn.Conv2d, (192, 56, 56), {"out_channels": 192, "kernel_size": 3, "padding": 1, "groups": 8}),
    (nn.Conv2d, (576, 14, 14), {"out_channels": 576, "kernel_size": 3, "stride": 2, "padding": 1, "groups": 24}),
    (nn.Conv2d, (96, 56, 56), {"out_channels": 96, "kernel_size": 3, "padding": 1, "groups": 96}),
    (nn.Conv2d, (64, 56, 56), {"out_channels": 24, "kernel_size": 1}),
    (nn.Conv2d, (3, 224, 224), {"out_channels": 32, "kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.Conv2d, (3, 64, 64), {"out_channels": 64, "kernel_size": 4, "stride": 2, "padding": 1, "bias": False}),
    (nn.Conv2d, (512, 4, 4), {"out_channels": 1, "kernel_size": 4, "bias": False}),
    (nn.ConvTranspose2d, (100, 1, 1), {"out_channels": 512, "kernel_size": 4, "bias": False}),
    (nn.ConvTranspose2d, (512, 4, 4), {"out_channels": 256, "kernel_size": 4, "stride": 2, "padding": 1}),
    (nn.ConvTranspose2d, (128, 16, 16), {"out_channels": 64, "kernel_size": 4, "stride": 2, "padding": 1}),
    (nn.ConvTranspose2d, (64, 32, 32), {"out_channels": 3, "kernel_size": 4, "stride": 2, "padding": 1}),
    (nn.ConvTranspose2d, (256, 28, 28), {"out_channels": 128, "kernel_size": 2, "stride": 2}),
    (nn.Conv1d, (1, 16000), {"out_channels": 64, "kernel_size": 80, "stride": 4}),
    (nn.Conv1d, (64, 4000), {"out_channels": 64, "kernel_size": 3, "padding": 1}),
    (nn.Conv1d, (128, 1000), {"out_channels": 256, "kernel_size": 3, "padding": 1}),
    (nn.Conv1d, (512, 8000), {"out_channels": 512, "kernel_size": 3, "stride": 2}),
    (nn.Conv1d, (768, 250), {"out_channels": 768, "kernel_size": 128, "padding": 64, "groups": 16}),
    (nn.Conv1d, (80, 3000), {"out_channels": 384, "kernel_size": 3, "padding": 1}),
    (
        nn.Conv3d,
        (3, 16, 112, 112),
        {"out_channels": 64, "kernel_size": (3, 7, 7), "stride": (1, 2, 2), "padding": (1, 3, 3)},
    ),
    (nn.Conv3d, (64, 16, 56, 56), {"out_channels": 64, "kernel_size": 3, "padding": 1}),
    (nn.Conv3d, (64, 16, 56, 56), {"out_channels": 128, "kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.Conv3d, (256, 4, 14, 14), {"out_channels": 256, "kernel_size": 3, "padding": 1}),
    (nn.Conv3d, (64, 16, 56, 56), {"out_channels": 128, "kernel_size": 1, "stride": 2}),
)
"""Kinds that the plain list lacks: dilated, grouped, transposed, in one and three dimensions, few channels."""


def odd_convolutions(device: str, batches: tuple[int, ...]) -> Iterator[Case]:
    for kind, shape, options in ODD_CONVOLUTIONS:
        for dtype in (torch.float32, torch.bfloat16):
            for batch in batches:

                def work(
                    kind: Any = kind, shape: Any = (batch, *shape), options: Any = options, dtype: Any = dtype
                ) -> None:
                    x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
                    layer = kind(shape[1], **options).to(device, dtype)
                    # The product makes the gradient one that lies in memory as in a model.
                    (layer(x) * 1.5).sum().backward()

                yield f"{kind.__name__} {shape} {options} {dtype} b{batch}", work


def attention(device: str) -> Iterator[Case]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
    ):
        for dtype in FLOATS:
            for heads, kv, length, width in ((12, 12, 512, 64), (16, 16, 1024, 64), (32, 8, 1000, 64), (8, 8, 197, 96)):
                for causal in (False, True):
                    for masked in (False, True):
                        if masked and (causal or backend == SDPBackend.FLASH_ATTENTION):
                            continue

                        def work(
                            backend: Any = backend,
                            dtype: Any = dtype,
                            shape: Any = (heads, kv, length, width),
                            causal: bool = causal,
                            masked: bool = masked,
                        ) -> None:
                            heads, kv, length, width = shape
                            q, k, v = (
                                torch.randn(4, n, length, width, device=device, dtype=dtype, requires_grad=True)
                                for n in (heads, kv, kv)
                            )
                            mask = torch.zeros(4, 1, length, length, device=device, dtype=dtype) if masked else None
                            with sdpa_kernel([backend]):
                                out = F.scaled_dot_product_attention(
                                    q, k, v, mask, is_causal=causal, enable_gqa=heads != kv
                                )
                            out.sum().backward()

                        yield f"sdpa {backend.name} {dtype} {heads}/{kv} {length} {width} {causal} {masked}", work


def recurrent(device: str) -> Iterator[Case]:
    for kind, width, hidden, layers, both in (
        (nn.LSTM, 512, 1024, 2, False),
        (nn.LSTM, 256, 512, 1, True),
        (nn.GRU, 128, 512, 3, True),
        (nn.GRU, 512, 1024, 1, False),
        (nn.RNN, 256, 256, 2, False),
    ):
        for batch, length in ((16, 128), (32, 128), (64, 64)):
            for dtype in FLOATS:

                def work(
                    kind: Any = kind, shape: Any = (batch, length, width, hidden, layers, both), dtype: Any = dtype
                ) -> None:
                    batch, length, width, hidden, layers, both = shape
                    rnn = kind(width, hidden, layers, batch_first=True, bidirectional=both).to(device, dtype)
                    x = torch.randn(batch, length, width, device=device, dtype=dtype, requires_grad=True)
                    (rnn(x)[0] * 1.5).sum().backward()
                    rnn.eval()
                    with torch.no_grad():
                        rnn(x)

                yield f"{kind.__name__} {width} {hidden} {layers} {both} {batch} {length} {dtype}", work


def products(device: str) -> Iterator[Case]:
    """Matrix products of the kinds that layers make, with the workspaces that cuBLAS and cuBLASLt take."""
    for dtype in FLOATS:
        for rows, inner, columns in ((1024, 1024, 4096), (8192, 768, 3072), (4096, 4096, 100), (8192, 768, 50257)):

            def linear(dtype: Any = dtype, shape: Any = (rows, inner, columns)) -> None:
                rows, inner, columns = shape
                layer = nn.Linear(inner, columns).to(device, dtype)
                x = torch.randn(rows, inner, device=device, dtype=dtype, requires_grad=True)
                F.gelu(layer(x)).sum().backward()

            yield f"linear {rows} {inner} {columns} {dtype}", linear

        def batched(dtype: Any = dtype) -> None:
            a = torch.randn(64, 512, 64, device=device, dtype=dtype, requires_grad=True)
            (a @ a.transpose(1, 2)).softmax(-1).sum().backward()

        yield f"bmm {dtype}", batched


def others(device: str) -> Iterator[Case]:
    def tensor(*shape: int, dtype: Any = torch.float32, grad: bool = True) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype, requires_grad=grad)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, device=device)

    norm: dict[str, Callable[[Any, int], Any]] = {
        "layer_norm": lambda d, n: F.layer_norm(
            tensor(n, 512, 768, dtype=d), (768,), tensor(768, dtype=d), tensor(768, dtype=d)
        ),
        "rms_norm": lambda d, n: F.rms_norm(tensor(n, 512, 768, dtype=d), (768,), tensor(768, dtype=d)),
        "group_norm": lambda d, n: F.group_norm(
            tensor(n, 128, 64, 64, dtype=d), 32, tensor(128, dtype=d), tensor(128, dtype=d)
        ),
        "batch_norm": lambda d, n: nn.BatchNorm2d(64).to(device, d)(tensor(n, 64, 56, 56, dtype=d)),
        "batch_norm channels_last": lambda d, n: nn.BatchNorm2d(64).to(device, d)(
            tensor(n, 64, 56, 56, dtype=d).to(memory_format=torch.channels_last)
        ),
        "batch_norm_1d": lambda d, n: nn.BatchNorm1d(4096).to(device, d)(tensor(64 * n, 4096, dtype=d)),
        "cross_entropy": lambda d, n: F.cross_entropy(tensor(512 * n, 30522, dtype=d), whole(30522, 512 * n)),
        "cross_entropy 2d": lambda d, n: F.cross_entropy(tensor(n, 21, 128, 128, dtype=d), whole(21, n, 128, 128)),
        "softmax": lambda d, n: tensor(n, 12, 512, 512, dtype=d).softmax(-1),
        "log_softmax": lambda d, n: tensor(n * 512, 3000, dtype=d).log_softmax(-1),
        "dropout": lambda d, n: F.dropout(tensor(n, 512, 768, dtype=d), 0.1),
        "gelu": lambda d, n: F.gelu(tensor(n, 512, 3072, dtype=d)),
        "embedding": lambda d, n: F.embedding(whole(30000, n, 512), tensor(30000, 768, dtype=d)),
        "embedding sorted": lambda d, n: F.embedding(whole(30000, n * 16, 512), tensor(30000, 256, dtype=d)),
        "embedding padded": lambda d, n: F.embedding(whole(30000, n, 512), tensor(30000, 768, dtype=d), padding_idx=0),
        "embedding_bag": lambda d, n: F.embedding_bag(whole(30000, n * 64, 4), tensor(30000, 64, dtype=d), mode="sum"),
        "index": lambda d, n: tensor(n * 512, 768, dtype=d)[whole(n * 512, n * 200)],
        "index 2d": lambda d, n: tensor(n * 64, 17, 17, dtype=d)[:, whole(17, 136), whole(17, 136)],
        "index_select": lambda d, n: tensor(n * 512, 768, dtype=d).index_select(0, whole(n * 512, n * 200)),
        "gather": lambda d, n: tensor(n * 512, 768, dtype=d).gather(1, whole(768, n * 512, 8)),
        "index_add": lambda d, n: torch.zeros(n * 512, 256, device=device, dtype=d).index_add(
            0, whole(n * 512, n * 300), tensor(n * 300, 256, dtype=d)
        ),
        "scatter_add": lambda d, n: torch.zeros(n * 512, 64, device=device, dtype=d).scatter_add(
            0, whole(n * 512, n * 300, 64), tensor(n * 300, 64, dtype=d)
        ),
        "cumsum": lambda d, n: tensor(n, 100000, dtype=d).cumsum(-1),
        "cumsum flat": lambda d, n: tensor(n * 100000, dtype=d).cumsum(0),
        "sort": lambda d, n: tensor(n, 50000, dtype=d).sort(-1)[0],
        "sort flat": lambda d, n: tensor(n * 50000, dtype=d).sort()[0],
        "topk": lambda d, n: tensor(n, 50000, dtype=d).topk(100)[0],
        "topk experts": lambda d, n: tensor(n * 512, 8, dtype=d).topk(2)[0],
        "max_pool": lambda d, n: F.max_pool2d(tensor(n, 64, 112, 112, dtype=d), 3, 2, 1),
        "adaptive_avg_pool": lambda d, n: F.adaptive_avg_pool2d(tensor(n, 512, 7, 7, dtype=d), 1),
        "interpolate nearest": lambda d, n: F.interpolate(tensor(n, 128, 32, 32, dtype=d), scale_factor=2.0),
        "interpolate bilinear": lambda d, n: F.interpolate(
            tensor(n, 21, 32, 32, dtype=d), size=(256, 256), mode="bilinear", align_corners=False
        ),
        "norm": lambda d, n: tensor(n * 512, 768, dtype=d).norm(dim=-1),
        "norm flat": lambda d, n: tensor(n * 512, 768, dtype=d).norm(),
        "sum flat": lambda d, n: tensor(n * 512, 768, dtype=d).sum(),
        "mean columns": lambda d, n: tensor(n * 512, 768, dtype=d).mean(0),
        "conv_transpose": lambda d, n: nn.ConvTranspose2d(256, 128, 4, 2, 1).to(device, d)(
            tensor(n, 256, 16, 16, dtype=d)
        ),
        "conv1d": lambda d, n: nn.Conv1d(512, 512, 3, 2).to(device, d)(tensor(n, 512, 8000, dtype=d)),
        "conv3d": lambda d, n: nn.Conv3d(64, 64, 3, 1, 1).to(device, d)(tensor(n, 64, 8, 56, 56, dtype=d)),
        "nll 2d": lambda d, n: F.nll_loss(tensor(n, 21, 64, 64, dtype=d).log_softmax(1), whole(21, n, 64, 64)),
    }
    for name, make in norm.items():
        for dtype in FLOATS:
            for size in (4, 16):
                yield (
                    f"{name} {dtype} {size}",
                    lambda make=make, dtype=dtype, size=size: make(dtype, size).sum().backward(),
                )
    plain: dict[str, Callable[[], Any]] = {
        "nonzero": lambda: (tensor(1 << 20, grad=False) > 0).nonzero(),
        "masked_select": lambda: tensor(1 << 20, grad=False).masked_select(tensor(1 << 20, grad=False) > 0),
        "unique": lambda: whole(1000, 1 << 18).unique(),
        "argsort": lambda: whole(1000, 1 << 18).argsort(),
        "sort int": lambda: whole(8, 4096).sort(stable=True),
        "bincount": lambda: whole(1000, 1 << 18).bincount(minlength=1000),
        "histc": lambda: whole(8, 4096).float().histc(8, 0, 7),
        "index_put": lambda: torch.zeros(4096, 64, device=device).index_put_(
            (whole(4096, 3000),), tensor(3000, 64, grad=False), accumulate=True
        ),
        "index_put plain": lambda: torch.zeros(4096, 64, device=device).index_put_(
            (whole(4096, 3000),), tensor(3000, 64, grad=False)
        ),
        "randperm": lambda: torch.randperm(1 << 18, device=device),
        "multinomial": lambda: tensor(64, 1000, grad=False).abs().multinomial(10),
        "argmax": lambda: tensor(4096, 30522, grad=False).argmax(-1),
        "cat": lambda: torch.cat([tensor(1024, 1024, grad=False) for _ in range(8)]),
        "stack": lambda: torch.stack([tensor(1024, 1024, grad=False) for _ in range(8)]),
        "clip_grad_norm": lambda: clipped(tensor),
        "svd": lambda: torch.linalg.svd(tensor(256, 256, grad=False)),
        "cholesky": lambda: torch.linalg.cholesky(torch.eye(512, device=device)),
        "fft": lambda: torch.fft.rfft(tensor(64, 16000, grad=False)),
        "einsum": lambda: (
            torch.einsum("bhid,bhjd->bhij", tensor(4, 8, 256, 64), tensor(4, 8, 256, 64)).sum().backward()
        ),
    }
    yield from plain.items()


def clipped(tensor: Callable[..., torch.Tensor]) -> None:
    parameters = [nn.Parameter(tensor(512, 512, grad=False)) for _ in range(20)]
    sum((parameter.square().sum() for parameter in parameters), torch.zeros((), device=parameters[0].device)).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)


def optimizers(device: str) -> Iterator[Case]:
    kinds: dict[str, Callable[[Any, dict[str, bool]], Any]] = {
        "AdamW": lambda p, o: torch.optim.AdamW(p, 1e-3, **o),
        "Adam amsgrad": lambda p, o: torch.optim.Adam(p, 1e-3, amsgrad=True, **o),
        "Adam decay": lambda p, o: torch.optim.Adam(p, 1e-3, weight_decay=0.1, **o),
        "SGD": lambda p, o: torch.optim.SGD(p, 1e-3, **o),
        "SGD momentum": lambda p, o: torch.optim.SGD(p, 1e-3, momentum=0.9, weight_decay=1e-4, **o),
        "SGD nesterov": lambda p, o: torch.optim.SGD(p, 1e-3, momentum=0.9, nesterov=True, **o),
        "Adagrad": lambda p, o: torch.optim.Adagrad(p, 1e-3, **o),
        "RMSprop": lambda p, o: torch.optim.RMSprop(p, 1e-3, **o),
        "Adafactor": lambda p, o: torch.optim.Adafactor(p, 1e-3, **o),
        "NAdam": lambda p, o: torch.optim.NAdam(p, 1e-3, **o),
    }
    for name, make in kinds.items():
        for form, options in (
            ("foreach", {"foreach": True}),
            ("for_loop", {"foreach": False}),
            ("fused", {"fused": True}),
        ):
            for dtype in (torch.float32, torch.bfloat16):

                def work(make: Any = make, options: Any = options, dtype: Any = dtype) -> None:
                    parameters = [
                        nn.Parameter(torch.randn(size, 1000, device=device, dtype=dtype))
                        for size in (10, 300, 2000, 700)
                    ]
                    for parameter in parameters:
                        parameter.grad = torch.randn_like(parameter)
                    optimizer = make(parameters, options)
                    optimizer.step()
                    optimizer.step()

                yield f"optimizer {name} {form} {dtype}", work


def cases(device: str, batches: tuple[int, ...] = (4, 16, 64)) -> Iterator[Case]:
    yield from products(device)
    yield from attention(device)
    yield from others(device)
    yield from optimizers(device)
    yield from convolutions(device, batches)
