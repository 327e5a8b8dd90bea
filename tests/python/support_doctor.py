"""Small training programs for the tests of `gpuheap.doctor`: each leaks in one way, or looks as if it did.

They have the shape of the labelled recordings, on the CPU. Each function returns a model and its step.
"""

from __future__ import annotations

import collections
import functools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

Program = tuple[Any, Callable[[], None]]
WIDTH = 32


def quiet_torch() -> Any:
    """What the fixtures of a test give: PyTorch, imported without its warnings; the test is skipped where it is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("torch")
        module.manual_seed(0)
        return module


def net(torch: Any, out: int = 10) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, out))


def batch(torch: Any, rows: int = 64) -> tuple[Any, Any]:
    return torch.randn(rows, WIDTH), torch.randint(0, 10, (rows,))


def trained(torch: Any, each: Callable[..., None] | None = None, model: Any = None, rows: int = 64) -> Program:
    model = model or net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    count = 0

    def step() -> None:
        nonlocal count
        x, y = batch(torch, rows)
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if each is not None:
            each(count, model, x, out, loss)
        count += 1

    return model, step


# Leaks


def loss_accumulate(torch: Any) -> Program:
    model = net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    running = 0

    def step() -> None:
        nonlocal running
        x, y = batch(torch)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = running + torch.nn.functional.mse_loss(model(x).mean(), loss)  # here: keeps every graph

    return model, step


def running_loss(torch: Any) -> Program:
    """In place, after a plain backward: only the nodes stay."""
    model = net(torch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    total = torch.zeros(())

    def step() -> None:
        nonlocal total
        x, y = batch(torch)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # here

    return model, step


def losses_kept(torch: Any) -> Program:
    losses: list[Any] = []
    model = net(torch)

    def step() -> None:
        x, y = batch(torch)
        losses.append(torch.nn.functional.cross_entropy(model(x), y))  # here

    return model, step


def outputs_kept(torch: Any) -> Program:
    kept: list[Any] = []
    model = net(torch)

    def step() -> None:
        x, y = batch(torch)
        out = model(x)  # here
        torch.nn.functional.cross_entropy(out, y).backward()
        model.zero_grad()
        kept.append(out.detach())

    return model, step


def rnn_hidden(torch: Any) -> Program:
    rnn = torch.nn.GRU(8, 8, 2, batch_first=True)
    optimizer = torch.optim.SGD(rnn.parameters(), 1e-5)
    h: Any = None

    def step() -> None:
        nonlocal h
        out, h = rnn(torch.randn(4, 6, 8), h)  # here
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)

    return rnn, step


def eval_logits(torch: Any) -> Program:
    model = net(torch, 50).eval()
    logits: list[Any] = []

    def step() -> None:
        with torch.no_grad():
            logits.append(model(batch(torch)[0]))  # here

    return model, step


def errors_kept(torch: Any) -> Program:
    errors: list[Exception] = []
    model = net(torch)
    count = 0

    def inner(i: int) -> None:
        x, y = batch(torch)
        out = model(x)  # here
        if i % 2:
            raise ValueError("bad sample")
        torch.nn.functional.cross_entropy(out, y).backward()
        model.zero_grad()

    def step() -> None:
        nonlocal count
        count += 1
        try:
            inner(count)
        except ValueError as error:
            errors.append(error)

    return model, step


def hook_stash(torch: Any) -> Program:
    model = net(torch)
    seen: list[Any] = []

    def keep(module: Any, inputs: Any, out: Any) -> None:
        seen.append(out.detach().mean(0))  # here

    for layer in model:
        if type(layer) is torch.nn.Linear:
            layer.register_forward_hook(keep)
    return trained(torch, model=model)


def tensor_hook(torch: Any) -> Program:
    model = net(torch)
    seen: list[Any] = []

    def step() -> None:
        x, y = batch(torch)
        out = model(x)
        out.register_hook(seen.append)
        torch.nn.functional.cross_entropy(out, y).backward()  # here
        model.zero_grad()

    return model, step


def mask_cache(torch: Any) -> Program:
    cache: dict[int, Any] = {}
    layer = torch.nn.Linear(8, 8)
    generator = random.Random(0)
    sizes = generator.sample(range(10, 400), 200)

    def mask(n: int) -> Any:
        if n not in cache:
            cache[n] = torch.ones(n, n).tril()  # here
        return cache[n]

    def step() -> None:
        n = sizes.pop()
        q = layer(torch.randn(n, 8))
        scores = (q @ q.T).masked_fill(mask(n) == 0, -1e9).softmax(-1)
        (scores @ q).square().mean().backward()
        layer.zero_grad()

    return layer, step


def method_cache(torch: Any) -> Program:
    class Positions(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8))
            self.register_buffer("frequency", torch.arange(8.0))

        @functools.cache  # noqa: B019 (the leak that is looked for)
        def table(self, n: int) -> Any:
            return torch.arange(n)[:, None] * self.frequency  # here

    model = Positions()
    sizes = list(range(100, 300))

    def step() -> None:
        n = sizes.pop()
        (model.table(n) * model.weight).mean().backward()
        model.zero_grad()

    return model, step


def view_pins_storage(torch: Any) -> Program:
    feats: list[Any] = []
    model = net(torch)

    def step() -> None:
        x = torch.randn(256, WIDTH)  # here
        model(x).mean().backward()
        model.zero_grad()
        feats.append(x[:1])

    return model, step


def slow_leak(torch: Any) -> Program:
    stats: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        stats.append(out.detach().norm(dim=1)[:20].clone())  # here

    return trained(torch, each)


def loss_detached(torch: Any) -> Program:
    losses: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        losses.append(out.detach().mean())  # here

    return trained(torch, each)


def replay_unbounded(torch: Any) -> Program:
    buf: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        if i % 5 == 0:
            buf.append((x.clone(), out.detach()))  # here

    return trained(torch, each)


def every_tenth(torch: Any) -> Program:
    kept: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        if i % 10 == 0:
            kept.append(out.detach().clone())  # here

    return trained(torch, each)


def best_models(torch: Any) -> Program:
    best: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        if i % 4 == 0:
            best.append({name: value.clone() for name, value in model.state_dict().items()})  # here

    return trained(torch, each)


def cat_history(torch: Any) -> Program:
    history = torch.zeros(0, 10)

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        nonlocal history
        history = torch.cat([history, out.detach()])  # here

    return trained(torch, each)


def grads_logged(torch: Any) -> Program:
    grads: list[Any] = []
    model = net(torch)

    def step() -> None:
        x, y = batch(torch)
        torch.nn.functional.cross_entropy(model(x), y).backward()  # here
        grads.append(model[0].weight.grad)
        model.zero_grad()

    return model, step


# Healthy


def plain_adam(torch: Any) -> Program:
    return trained(torch)


def accumulate4(torch: Any) -> Program:
    model = net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    count = 0

    def step() -> None:
        nonlocal count
        x, y = batch(torch)
        (torch.nn.functional.cross_entropy(model(x), y) / 4).backward()
        count += 1
        if count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return model, step


def curriculum(torch: Any) -> Program:
    model = net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rows = 16

    def step() -> None:
        nonlocal rows
        x, y = batch(torch, rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        rows += 8

    return model, step


def ring_buffer(torch: Any) -> Program:
    buf: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        buf.append(x.clone())
        if len(buf) > 20:
            buf.pop(0)

    return trained(torch, each)


def bounded_deque(torch: Any) -> Program:
    buf: collections.deque[Any] = collections.deque(maxlen=1000)

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        buf.append(x.clone())

    return trained(torch, each)


def varlen_reserved(torch: Any) -> Program:
    model = net(torch)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    generator = random.Random(0)

    def step() -> None:
        x, y = batch(torch, generator.randrange(10, 300))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def averaged(torch: Any) -> Program:
    average: list[Any] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        if not average:
            average.extend(parameter.detach().clone() for parameter in model.parameters())
        for mean, parameter in zip(average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.01)

    return trained(torch, each)


def periodic_evaluation(torch: Any) -> Program:
    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        if i % 5 == 4:
            with torch.no_grad():
                outs = torch.cat([model(batch(torch)[0]) for _ in range(4)])
            outs.argmax(1).float().mean().item()

    return trained(torch, each)


def tied_weights(torch: Any) -> Program:
    nn = torch.nn

    class Tied(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x))

    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        x = torch.randint(0, 50, (32,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x).backward()
        optimizer.step()

    return model, step


def kv_cache(torch: Any) -> Program:
    qkv = torch.nn.Linear(16, 48)
    k: Any = None
    v: Any = None

    def step() -> None:
        nonlocal k, v
        with torch.no_grad():
            q, a, b = qkv(torch.randn(2, 1, 16)).chunk(3, -1)
            k = a if k is None else torch.cat([k, a], 1)[:, -30:]
            v = b if v is None else torch.cat([v, b], 1)[:, -30:]
            torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return qkv, step


def unfrozen_one_by_one(torch: Any) -> Program:
    model = net(torch)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model[4].requires_grad_().parameters(), 1e-3)
    thaw = {3: 2, 7: 0}
    count = 0

    def step() -> None:
        nonlocal count
        if count in thaw:
            optimizer.add_param_group({"params": list(model[thaw[count]].requires_grad_().parameters())})
        count += 1
        x, y = batch(torch)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def new_optimizer(torch: Any) -> Program:
    model = net(torch)
    optimizer: Any = None
    count = 0

    def step() -> None:
        nonlocal optimizer, count
        if count % 5 == 0:
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        count += 1
        x, y = batch(torch)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def losses_as_numbers(torch: Any) -> Program:
    losses: list[float] = []

    def each(i: int, model: Any, x: Any, out: Any, loss: Any) -> None:
        losses.append(loss.item())

    return trained(torch, each)


def double_backward_cleared(torch: Any) -> Program:
    model = net(torch)

    def step() -> None:
        x, y = batch(torch)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum(one.square().sum() for one in gradients)).backward()
        model.zero_grad()

    return model, step


def data_set_in_memory(torch: Any) -> Program:
    data, labels = torch.randn(2000, WIDTH), torch.randint(0, 10, (2000,))
    model = net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    last: Any = None

    def step() -> None:
        nonlocal last
        rows = torch.randint(0, 2000, (64,))
        optimizer.zero_grad()
        last = torch.nn.functional.cross_entropy(model(data[rows]), labels[rows])
        last.backward()
        optimizer.step()

    return model, step


def queue_of_batches(torch: Any) -> Program:
    queue: collections.deque[Any] = collections.deque(batch(torch) for _ in range(4))
    model = net(torch)

    def step() -> None:
        x, y = queue.popleft()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        model.zero_grad()
        queue.append(batch(torch))

    return model, step


# What is found for each leak: pattern, what the holder is called
LEAKS: dict[Callable[[Any], Program], tuple[str, str]] = {
    loss_accumulate: ("total", "'running'"),
    running_loss: ("total", "'total'"),
    losses_kept: ("graph", "'losses'"),
    outputs_kept: ("kept", "'kept'"),
    rnn_hidden: ("state", "'h'"),
    eval_logits: ("kept", "'logits'"),
    errors_kept: ("exceptions", "'errors'"),
    hook_stash: ("hook", "'seen'"),
    tensor_hook: ("gradients", "seen"),
    mask_cache: ("cache", "'cache'"),
    method_cache: ("method cache", "lru_cache of table"),
    view_pins_storage: ("view", "'feats'"),
    slow_leak: ("kept", "'stats'"),
    loss_detached: ("numbers", "'losses'"),
    replay_unbounded: ("periodic", "'buf'"),
    every_tenth: ("periodic", "'kept'"),
    best_models: ("model copies", "'best'"),
    cat_history: ("joined", "'history'"),
    grads_logged: ("gradients", "'grads'"),
}

HEALTHY: tuple[Callable[[Any], Program], ...] = (
    plain_adam,
    accumulate4,
    curriculum,
    ring_buffer,
    bounded_deque,
    varlen_reserved,
    averaged,
    periodic_evaluation,
    tied_weights,
    kv_cache,
    unfrozen_one_by_one,
    new_optimizer,
    losses_as_numbers,
    double_backward_cleared,
    data_set_in_memory,
    queue_of_batches,
)
