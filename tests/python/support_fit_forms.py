"""Programs as people write them who have not read how `make()` should be: other orders, loaders, numbers that are read.

python support_fit_forms.py OUT_FOLDER NAME...
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES, WIDTH, KINDS = 32, 64, 10


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, KINDS))


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(SAMPLES, WIDTH), torch.randint(KINDS, (SAMPLES,))


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def in_order() -> Any:
    model = _model()
    return model, _adam(model), nn.CrossEntropyLoss(), _batch()


def shuffled() -> Any:
    model = _model()
    return _batch(), nn.CrossEntropyLoss(), _adam(model), model


def with_maker_first() -> Any:
    model = _model()
    return model, F.cross_entropy, (lambda samples=SAMPLES: tuple(one[:samples] for one in _batch())), _adam(model)


def with_scheduler() -> Any:
    model = _model()
    optimizer = _adam(model)
    return model, optimizer, F.cross_entropy, _batch(), torch.optim.lr_scheduler.StepLR(optimizer, 1)


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = _model()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), labels)


def three() -> Any:
    model = WithLoss()
    return model, _adam(model), _batch()


def _batches() -> Iterator[Any]:
    while True:
        yield _batch()


def generator() -> Any:
    model = _model()
    return model, _adam(model), F.cross_entropy, _batches()


def generator_function() -> Any:
    model = _model()
    return model, _adam(model), F.cross_entropy, _batches


def loader() -> Any:
    model = _model()
    data = torch.utils.data.TensorDataset(torch.randn(100, WIDTH), torch.randint(KINDS, (100,)))
    loads = torch.utils.data.DataLoader(data, batch_size=SAMPLES, shuffle=True, num_workers=2)
    return model, _adam(model), F.cross_entropy, loads


def arrays() -> Any:
    import numpy

    model = _model()
    batch = (numpy.zeros((SAMPLES, WIDTH), dtype="float32"), numpy.zeros(SAMPLES, dtype="int64"))
    return model, _adam(model), F.cross_entropy, batch


def net() -> Any:
    model = _model()

    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(batch[0]), batch[1])

    return model, _adam(model), loss, _batch()


def averaged() -> Any:
    """The copy has a buffer, whose storage is copied by PyTorch and not the tensor."""
    model = nn.Sequential(nn.Linear(WIDTH, KINDS), nn.BatchNorm1d(KINDS)).cuda()
    average = copy.deepcopy(model)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)

    return {"model": model, "optimizer": _adam(model), "batch": _batch(), "step": step}


def logged() -> Any:
    model = _model()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        output = model(batch[0])
        loss = F.cross_entropy(output, batch[1])
        loss.backward()
        optimizer.step()
        right = (output.argmax(1) == batch[1]).float().mean()
        print(f"{loss:.3f} {right:.1%}", output.detach().cpu().numpy().mean(), right.tolist())
        return loss.detach().cpu().numpy()

    return {"model": model, "optimizer": _adam(model), "batch": _batch(), "step": step}


class Chances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 32), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encode(x).chunk(2, -1)
        found = torch.distributions.Normal(mean, spread.exp())
        return F.mse_loss(self.decode(found.rsample()), x)


def distributions() -> Any:
    model = Chances()
    return model, _adam(model), None, torch.randn(SAMPLES, WIDTH)


def sparse() -> Any:
    model = nn.Sequential(nn.EmbeddingBag(1000, WIDTH, sparse=True), nn.Linear(WIDTH, KINDS))
    batch = (torch.randint(1000, (SAMPLES, 20)), torch.randint(KINDS, (SAMPLES,)))
    return model, torch.optim.SGD(model.parameters(), 0.1), F.cross_entropy, batch


def sparse_adam() -> Any:
    model, _, loss, batch = sparse()
    optimizers = (torch.optim.SparseAdam(model[0].parameters()), torch.optim.Adam(model[1].parameters()))
    return model, optimizers, loss, batch


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(WIDTH, 16, batch_first=True), nn.Linear(16, KINDS)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(padded.mean(1))


def packed() -> Any:
    model = Packed()
    inputs = (torch.randn(4, 20, WIDTH), torch.tensor([20, 10, 5, 5]))
    return model, _adam(model), F.cross_entropy, (inputs, torch.randint(KINDS, (4,)))


def packed_known() -> Any:
    model = Packed()

    def loss(model: Any, x: Any) -> Any:
        return model(x, torch.tensor([20, 10, 5, 5])).square().mean()

    return model, _adam(model), loss, torch.randn(4, 20, WIDTH)


def spoken() -> Any:
    model = nn.Linear(WIDTH, 20)

    def loss(model: Any, batch: Any) -> Any:
        scores = model(batch[0]).log_softmax(-1)
        return F.ctc_loss(scores, batch[1], batch[2], batch[3])

    lengths = (torch.full((SAMPLES,), 50), torch.full((SAMPLES,), 7))
    return model, _adam(model), loss, (torch.randn(50, SAMPLES, WIDTH), torch.ones(SAMPLES, 7).long(), *lengths)


@torch.jit.script
def _swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Linear(WIDTH, KINDS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _swish(self.inner(x))


def scripted() -> Any:
    model = Scripted()
    return model, _adam(model), F.cross_entropy, _batch()


def class_of_optimizer() -> Any:
    return _model(), torch.optim.Adam, F.cross_entropy, _batch()


def three_parts() -> Any:
    model = _model()
    return model, _adam(model), (lambda output, target, weights: output.mean()), (*_batch(), torch.ones(SAMPLES))


def several_models() -> Any:
    models = [_model(), _model()]
    return models, _adam(models[0]), F.cross_entropy, _batch()


def two_devices() -> Any:
    model = _model()
    shift = torch.randn(SAMPLES, KINDS)
    return model, _adam(model), (lambda model, batch: (model(batch[0]) + shift).mean()), _batch()


def runs_dry() -> Any:
    model = _model()
    return model, _adam(model), F.cross_entropy, iter([_batch()])


def main(folder: Path, names: list[str]) -> None:
    from gpuheap._fit.errors import TraceError
    from gpuheap._fit.trace import trace

    tensor = {name: getattr(torch.Tensor, name) for name in ("__deepcopy__", "__format__", "numpy", "tolist")}
    script = torch.jit.script
    for name in names:
        try:
            found = trace(globals()[name], source=f"support_fit_forms.py:{name}")
        except TraceError as error:
            found = {"error": str(error)}
        same = all(getattr(torch.Tensor, name) is before for name, before in tensor.items())
        found["state_kept"] = same and torch.jit.script is script and f"{torch.tensor(1.5):.2f}" == "1.50"
        (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
