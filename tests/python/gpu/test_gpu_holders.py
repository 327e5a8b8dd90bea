"""`gpuheap.holders` names the real holder of what training loops leak, on a real device.

Each program is a loop with one leak. What has been alive for some steps, and is neither a parameter nor a gradient nor
optimizer state, is what leaked; its holder is asked for from inside the loop, by the address alone.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from gpuheap._held import groups_of
from gpuheap._survivors import census
from gpuheap._tensors import live_tensors
from gpuheap.holders import holders

pytestmark = pytest.mark.gpu
STEPS = 12


class Found(Exception):
    """Ends a loop; carries what was found."""


class Mark:
    """Called at the end of each step; at the last one it asks who holds the oldest of what leaked."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.births: dict[int, int] = {}
        self.step = 0

    def __call__(self) -> None:
        torch = self.torch
        now = census(torch, lambda device: device.startswith("cuda"))
        self.births = {key: self.births.get(key, self.step) for key in now.storages}
        self.step += 1
        if self.step < STEPS:
            return
        tensors = live_tensors(torch)
        groups = groups_of(torch, tensors)
        model = {
            tensor.untyped_storage()._cdata
            for tensor in tensors
            if groups.get(id(tensor)) in ("parameters", "gradients", "optimizer state", "buffers")
        }
        del tensors
        leaked = [now.storages[key] for key, born in self.births.items() if 2 <= born < STEPS - 3 and key not in model]
        assert leaked, "nothing leaked"
        largest = max(leaked, key=lambda storage: storage.bytes)
        raise Found(str(holders(largest.address)))


def net(torch: Any, width: int = 256, out: int = 10) -> Any:
    nn = torch.nn
    layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out)]
    return nn.Sequential(*layers).cuda()


def batch(torch: Any, rows: int = 64, width: int = 256) -> tuple[Any, Any]:
    return torch.randn(rows, width, device="cuda"), torch.randint(0, 10, (rows,), device="cuda")


def train(torch: Any, mark: Mark, each: Callable[..., None], model: Any = None) -> None:
    model = model or net(torch)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for i in range(STEPS):
        x, y = batch(torch)
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each(i, x, out)
        mark()


def loss_accumulate(torch: Any, mark: Mark) -> None:
    model, running = net(torch), 0
    for _ in range(STEPS):
        x, y = batch(torch)
        running = running + torch.nn.functional.cross_entropy(model(x), y)
        mark()


def outputs_kept(torch: Any, mark: Mark) -> None:
    kept: list[Any] = []
    train(torch, mark, lambda i, x, out: kept.append(out.detach()))


def rnn_hidden(torch: Any, mark: Mark) -> None:
    rnn, h = torch.nn.GRU(64, 64, 1, batch_first=True).cuda(), None
    for _ in range(STEPS):
        out, h = rnn(torch.randn(4, 8, 64, device="cuda"), h)
        out.square().mean().backward(retain_graph=True)
        mark()


def eval_logits(torch: Any, mark: Mark) -> None:
    model, logits = net(torch).eval(), []
    with torch.no_grad():
        for _ in range(STEPS):
            logits.append(model(batch(torch)[0]))
            mark()


def errors_kept(torch: Any, mark: Mark) -> None:
    model = net(torch)
    errors = []

    def step(i: int) -> None:
        x, _ = batch(torch)
        out = model(x)
        raise ValueError(f"bad sample {i} {out.shape}")

    for i in range(STEPS):
        try:
            step(i)
        except ValueError as error:
            errors.append(error)
        mark()


def hook_stash(torch: Any, mark: Mark) -> None:
    model, seen = net(torch), []
    for layer in model:
        layer.register_forward_hook(lambda module, inputs, out: seen.append(out.detach().mean(0)))
    train(torch, mark, lambda i, x, out: None, model)


def mask_cache(torch: Any, mark: Mark) -> None:
    cache: dict[int, Any] = {}

    def mask(n: int) -> Any:
        if n not in cache:
            cache[n] = torch.ones(n, n, device="cuda").tril()
        return cache[n]

    for i in range(STEPS):
        mask(random.randrange(16, 64) + 100 * i)
        mark()


def method_cache(torch: Any, mark: Mark) -> None:
    class Model:
        @functools.cache  # noqa: B019 (the leak that is looked for)
        def mask(self, n: int) -> Any:
            return torch.ones(n, n, device="cuda").tril()

    for i in range(STEPS):
        Model().mask(16 + i)
        mark()


def view_pins_storage(torch: Any, mark: Mark) -> None:
    feats: list[Any] = []
    train(torch, mark, lambda i, x, out: feats.append(x[:1]))


def replay_unbounded(torch: Any, mark: Mark) -> None:
    buf: list[Any] = []

    def each(i: int, x: Any, out: Any) -> None:
        if i % 3 == 0:
            buf.append((x.clone(), out.detach().clone()))

    train(torch, mark, each)


def ctx_attribute(torch: Any, mark: Mark) -> None:
    class Keep(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.big = x * 2
            return x + 1

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    outs, weight = [], torch.ones(1 << 16, device="cuda", requires_grad=True)
    for _ in range(STEPS):
        outs.append(Keep.apply(weight).sum())
        mark()


HELD_BY = {
    loss_accumulate: "grad_fn of local 'running' in ",
    outputs_kept: "local 'kept'[",
    rnn_hidden: "grad_fn of local 'h' in ",
    eval_logits: "local 'logits'[",
    errors_kept: "kept by the traceback of ValueError in local 'errors'[",
    hook_stash: "local 'seen'[",
    mask_cache: "local 'cache'[",
    method_cache: "lru_cache of mask (test_gpu_holders.py:",
    view_pins_storage: "local 'feats'[",
    replay_unbounded: "local 'buf'[",
    ctx_attribute: "ctx.big of KeepBackward",
}


@pytest.mark.parametrize("program", HELD_BY, ids=lambda program: str(program.__name__))
def test_the_real_holder(program: Callable[..., None]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(Found) as caught:
        program(torch, Mark(torch))
    print(f"\n{program.__name__}: {caught.value}")
    assert HELD_BY[program] in str(caught.value)
