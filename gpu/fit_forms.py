"""Forms of programs whose operators no model of the zoo has: predicted and real memory of two steps.

    python gpu/fit_forms.py OUT.json [NAME...]

Packed sequences, CTC, sparse gradients, distributions, averages, scripted code. Each is planned for without a plan, and
then run on the GPU in a process of its own; takes about 20 s each. No rule was learnt from any of them.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True), nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(padded.mean(1))


def packed() -> Any:
    model = _Packed()
    lengths = torch.arange(400, 400 - 64 * 4, -4)

    def loss(model: Any, batch: Any) -> Any:
        return F.cross_entropy(model(batch[0], lengths), batch[1])

    return model, _adam(model), loss, (torch.randn(64, 400, 256), torch.randint(10, (64,)))


class _Spoken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(80, 512, 2), nn.Linear(512, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0]).log_softmax(-1)


def ctc() -> Any:
    model = _Spoken()

    def loss(model: Any, batch: Any) -> Any:
        return F.ctc_loss(model(batch[0]), *batch[1:])

    lengths = (torch.full((64,), 600), torch.full((64,), 80))
    return model, _adam(model), loss, (torch.randn(600, 64, 80), torch.randint(1, 500, (64, 80)), *lengths)


class _Words(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(1_000_000, 128, mode=mode, sparse=True)
        self.head = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


def sparse() -> Any:
    model = _Words("sum")
    optimizers = (torch.optim.SparseAdam(model.table.parameters()), _adam(model.head))
    return model, optimizers, F.cross_entropy, (torch.randint(1_000_000, (4096, 40)), torch.randint(10, (4096,)))


def sparse_sgd() -> Any:
    model = _Words("mean")
    batch = (torch.randint(1_000_000, (4096, 40)), torch.randint(10, (4096,)))
    return model, torch.optim.SGD(model.parameters(), 0.1), F.cross_entropy, batch


class _Chances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(784, 400), nn.Linear(200, 784)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encode(x).chunk(2, -1)
        found = torch.distributions.Normal(mean, spread.exp())
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        return F.mse_loss(self.decode(found.rsample()), x) + torch.distributions.kl_divergence(found, prior).mean()


def distributions() -> Any:
    model = _Chances()
    return model, _adam(model), None, torch.randn(65536, 784)


def averaged() -> Any:
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    average = copy.deepcopy(model)

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)
        return f"{loss:.3f}"

    batch = (torch.randn(8192, 2048), torch.randint(2048, (8192,)))
    return {"model": model, "optimizer": _adam(model), "batch": batch, "step": step}


@torch.jit.script
def _swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class _Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = _swish(layer(x))
        return x


def scripted() -> Any:
    model = _Scripted()
    return model, _adam(model), F.mse_loss, (torch.randn(16384, 1024), torch.randn(16384, 1024))


NAMES = ("packed", "ctc", "sparse", "sparse_sgd", "distributions", "averaged", "scripted")


def main(out: Path, names: list[str]) -> None:
    import gpuheap

    rows: dict[str, Any] = {}
    for name in names or NAMES:
        try:
            plan = gpuheap.fit(f"{Path(__file__).resolve()}:{name}", without=["all"], device="H200")
            found = plan.verify(steps=2)
        except gpuheap.Error as error:
            rows[name] = {"error": str(error)}
        else:
            rows[name] = {"predicted": plan.peak, "verified": found, "notes": plan.notes}
            real = found["real"]
            line = [f"{name:14}"]
            for what in ("allocated_bytes", "reserved_bytes"):
                off = plan.peak[what] / real[what] - 1.0 if real.get(what) else float("nan")
                line.append(
                    f"{what[:9]} {plan.peak[what] / 2**20:9.1f} MiB, real {real.get(what, 0) / 2**20:9.1f} ({off:+.2%})"
                )
            print("  ".join(line), flush=True)
        # Kept as it goes: a visit may end.
        out.write_text(json.dumps(rows, indent=1))
        if "error" in rows[name]:
            print(f"{name:14} {rows[name]['error']}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
