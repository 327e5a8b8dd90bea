"""Programs that the tests of the tracer trace, and the process that they are traced in.

Tracing makes PyTorch's autograd run without a driver, for as long as its process lives: tests keep that out of theirs.

    python support_fit.py OUT_FOLDER NAME...
"""

from __future__ import annotations

import functools
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def mlp() -> Any:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    batch = (torch.randn(32, 64), torch.randint(0, 10, (32,)))
    return model, torch.optim.AdamW(model.parameters()), F.cross_entropy, batch


def sized() -> Any:
    model, optimizer, loss, _ = mlp()
    return model, optimizer, loss, lambda size=8: (torch.randn(size, 64), torch.randint(0, 10, (size,)))


def evaluated() -> Any:
    model, _, loss, batch = mlp()
    return {"model": model.eval(), "loss": loss, "batch": batch}


def evaluated_alone() -> Any:
    model, _, _, (inputs, _) = mlp()
    return {"model": model.eval(), "batch": inputs}


def loaded() -> Any:
    """A batch as training takes it: by worker processes, into pinned memory."""
    model, optimizer, loss, (inputs, target) = mlp()
    samples = torch.utils.data.TensorDataset(inputs, target)
    loader = torch.utils.data.DataLoader(
        samples, batch_size=8, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True, timeout=30
    )
    return model, optimizer, loss, next(iter(loader))


class Residual(nn.Module):
    """Two gradients meet at `x`, and again at its double."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return (x.sin() + x.exp()).sum()


def residual() -> Any:
    model = Residual()
    return model, torch.optim.SGD(model.parameters(), 0.1), None, torch.randn(1024, 256)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class Blocks(nn.Module):
    """Blocks that may be checkpointed or run under autocast; the first of them is used once more if `again`."""

    def __init__(
        self, kept: str = "", dtype: torch.dtype | None = None, again: bool = False, masked: bool = False
    ) -> None:
        super().__init__()
        self.kept, self.dtype, self.again, self.masked = kept, dtype, again, masked
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(32, 32, dtype=torch.bool, device=x.device) if self.masked else None
        with torch.autocast("cuda", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            for block in [*self.blocks, *(self.blocks[:1] if self.again else ())]:
                again = functools.partial(checkpoint, block, use_reentrant=self.kept == "reentrant")
                x = again(x) if self.kept else block(x, mask)
        return x.float().square().mean()


def _blocks(**options: Any) -> Any:
    model = Blocks(**options)
    # Reentrant checkpoints want inputs that need gradients.
    x = torch.randn(8, 32, 64, requires_grad=options.get("kept") == "reentrant")
    return model, torch.optim.AdamW(model.parameters()), None, x


def blocks() -> Any:
    return _blocks()


def checkpointed() -> Any:
    return _blocks(kept="plain")


def reentrant() -> Any:
    return _blocks(kept="reentrant")


def autocast() -> Any:
    return _blocks(dtype=torch.bfloat16)


def called_twice() -> Any:
    return _blocks(again=True)


def masked() -> Any:
    return _blocks(masked=True)


def scaled() -> Any:
    model, optimizer, _, x = _blocks(dtype=torch.float16)
    scaler = torch.amp.GradScaler("cuda")

    def step(model: nn.Module, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()

    step.whole_step = True  # type: ignore[attr-defined]
    return model, optimizer, step, x


def convolutions() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10)
    )
    batch = (torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,)))
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), F.cross_entropy, batch


class Recurrent(nn.Module):
    """An LSTM with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0]).mean()


def recurrent() -> Any:
    model = Recurrent()
    return model, torch.optim.Adam(model.parameters()), None, torch.randn(4, 10, 16)


def recurrent_autocast() -> Any:
    model = Recurrent()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(x)  # type: ignore[no-any-return]

    return model, torch.optim.Adam(model.parameters()), loss, torch.randn(4, 10, 16)


def elementwise_losses() -> Any:
    """Three losses that PyTorch computes into what then is one number, and one that it does not."""
    model = nn.Linear(64, 64)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = model(x)
        losses = (
            F.mse_loss(made, x),
            F.smooth_l1_loss(made, x, reduction="sum"),
            F.binary_cross_entropy(made.sigmoid(), x),
            F.l1_loss(made, x),
        )
        return torch.stack(losses).sum()

    return model, torch.optim.SGD(model.parameters()), loss, torch.rand(32, 64)


def encoder_evaluated() -> Any:
    """Layers whose fast path is taken: with attention as one kernel, and, under a mask, step by step."""
    layers = (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=first) for first in (False, True))
    model = nn.ModuleList(layers).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(8)

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return (model[0](x) + model[1](x, mask.to(x.device))).sum()  # type: ignore[no-any-return]

    return {"model": model, "loss": loss, "batch": torch.randn(4, 8, 32)}


class Careful(nn.Module):
    """Looks at its mask, as transformers do, and leaves it out where it is of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x if mask.all() else x.where(mask[..., None] > 0, 0)).mean()


def in_pieces() -> Any:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        pieces = zip(*(one.chunk(2) for one in batch), strict=True)
        return sum((model(*piece) for piece in pieces), torch.zeros((), device=batch[0].device))

    model = Careful()
    batch = (torch.randn(4, 8, 16), torch.ones(4, 8, dtype=torch.int64))
    return model, torch.optim.SGD(model.parameters()), loss, batch


def fused_sgd() -> Any:
    model, _, loss, batch = mlp()
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True), loss, batch


class Tied(nn.Module):
    """One weight for the words that come in and for those that go out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), ids.flatten())


def tied() -> Any:
    model = Tied()
    return model, torch.optim.AdamW(model.parameters()), None, torch.randint(0, 100, (4, 8))


class Pair(nn.Module):
    """A generator and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(8, 64)
        self.critic = nn.Linear(64, 1)


def gan() -> Any:
    model = Pair()
    optimizers = tuple(torch.optim.Adam(part.parameters()) for part in (model.generator, model.critic))

    def step(model: Any, optimizers: Any, real: torch.Tensor) -> None:
        fake = model.generator(torch.randn(real.shape[0], 8, device="cuda"))
        optimizers[1].zero_grad()
        (F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake.detach())).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-model.critic(fake)).mean().backward()
        optimizers[0].step()

    step.whole_step = True  # type: ignore[attr-defined]
    return model, optimizers, step, torch.randn(16, 64)


class Choosy(nn.Module):
    """Picks rows by what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = (x[:, 0] > 0).nonzero().squeeze(-1)
        return self.layer(x[picked]).mean()


def choosy() -> Any:
    model = Choosy()
    return model, torch.optim.SGD(model.parameters(), 0.1), None, torch.randn(64, 16)


def on_gpu() -> Any:
    """A program that brings its model to the GPU itself, and asks for what it is."""
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    model = nn.Linear(64, 64).cuda().to(torch.bfloat16)
    assert next(model.parameters()).is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return model, optimizer, lambda model, batch: model(batch).square().mean(), torch.randn(8, 64, dtype=torch.bfloat16)


def changes_state() -> Any:
    """A program that changes everything about its process that a program may."""
    random.seed(1)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = True
    torch.set_grad_enabled(True)
    model = nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), 0.1), lambda model, batch: model(batch).sum(), torch.randn(2, 4)


def no_loss() -> Any:
    model = nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), 0.1), None, torch.randn(2, 4)


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7, device=x.device)


def breaks() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), Breaks())
    return model, torch.optim.SGD(model.parameters(), 0.1), None, torch.randn(2, 4)


def bad_batch() -> Any:
    model, optimizer, loss, _ = mlp()

    def batch(size: int = 4) -> Any:
        raise FileNotFoundError("data.bin is not there")

    return model, optimizer, loss, batch


def fails() -> Any:
    raise ValueError("no such model: tiny")


def only_model() -> Any:
    return nn.Linear(2, 2)


def _state() -> list[Any]:
    return [
        random.getstate(),
        torch.get_rng_state().tolist(),
        str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.is_grad_enabled(),
        torch.cuda.is_available(),
        torch.cuda.is_initialized(),
        torch.nn.functional.linear is _LINEAR,
        torch.nn.functional.scaled_dot_product_attention is _ATTENTION,
        torch.nn.Module._apply is _APPLY,
        torch.nn.RNNBase.flatten_parameters is _FLATTEN,
        list(sys.path),
    ]


_LINEAR = torch.nn.functional.linear
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_APPLY = torch.nn.Module._apply
_FLATTEN = torch.nn.RNNBase.flatten_parameters


def main(folder: Path, names: list[str]) -> None:
    from gpuheap._fit.errors import TraceError
    from gpuheap._fit.pretend import Gpu
    from gpuheap._fit.trace import trace

    for name in names:
        program, _, options = name.partition("@")
        before = _state()
        gpu = Gpu(capability=(8, 0)) if options == "ampere" else Gpu()
        more: dict[str, Any] = {"batch": 16} if options == "16" else {}
        if options == "offloaded":
            bounds = {"least_bytes": 1 << 15, "window_bytes": 1 << 17}
            modules = ["blocks.0", "blocks.1", "blocks.2"]
            more["levers"] = [{"lever": "offload_activations", "modules": modules, **bounds}]
        if options == "phases":
            more["phases"] = ["evaluation", "saving"]
        try:
            found = trace(globals()[program], gpu=gpu, source=f"support_fit.py:{program}", **more)
        except TraceError as error:
            found = {"error": str(error)}
        found["state_kept"] = _state() == before
        (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
