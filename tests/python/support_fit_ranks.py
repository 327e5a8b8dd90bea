"""What the ranks of `test_fit_shard.py` run: the same steps sharded and not; prints losses as JSON on rank 0."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from gpuheap._fit.apply import apply
from gpuheap.errors import Error

VOCABULARY = 50


class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: Any) -> Any:
        parts = [
            one(hidden).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        ]
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.fc1, self.fc2 = torch.nn.Linear(width, 3 * width + 2), torch.nn.Linear(3 * width + 2, width)

    def forward(self, hidden_states: Any, scale: float = 1.0) -> Any:
        hidden = hidden_states + scale * self.attention(self.norm(hidden_states))
        return hidden + self.fc2(torch.nn.functional.gelu(self.fc1(hidden)))


class Model(torch.nn.Module):
    """A language model whose head shares the embedding's weight."""

    loss_type = "ForMaskedLM"

    def __init__(self, width: int = 16, blocks: int = 5) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any, labels: Any) -> dict[str, Any]:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, scale=0.5)
        logits = self.head(self.norm(hidden))
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def run(levers: list[dict[str, Any]], steps: int = 4) -> list[float]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, VOCABULARY, (4, 6))
    labels = tokens.clone()
    # Parts with unequally many labels: the mean is that of the whole batch, not of the means.
    labels[0, 1:] = -100
    batch = {"tokens": tokens, "labels": labels}
    form = next((lever["form"] for lever in levers if lever["lever"] == "shard"), None)
    applied = apply(levers, model, optimizer)
    if form in ("data", "fsdp2"):
        batch = {name: value.chunk(2)[dist.get_rank()] for name, value in batch.items()}
    losses = []
    for _ in range(steps):
        loss = applied.step(batch).detach().clone()
        if form in ("data", "fsdp2"):
            dist.all_reduce(loss)
            loss /= 2
        losses.append(float(loss))
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    expected = run([])
    found: dict[str, Any] = {"expected": expected}
    for name, levers in json.loads(sys.argv[1]).items():
        try:
            found[name] = run(levers)
        except Error as error:
            found[name] = str(error)
        dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
