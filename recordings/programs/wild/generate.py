"""Generates tokens with a small decoder and a cache of keys and values."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
VOCABULARY = 8000


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, cache):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat([cache[0], k], dim=2)
            v = torch.cat([cache[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        y = y.transpose(1, 2).reshape(batch, length, width)
        return self.out(y), (k, v)


class Decoder(nn.Module):
    def __init__(self, width=256, depth=3, heads=4):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Attention(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens, caches):
        x = self.embed(tokens)
        new_caches = []
        for layer, cache in zip(self.layers, caches):
            y, cache = layer(x, cache)
            x = x + y
            new_caches.append(cache)
        return self.head(x[:, -1]), new_caches


@torch.no_grad()
def generate(model, prompt, new_tokens):
    caches = [None] * len(model.layers)
    tokens = prompt
    step_input = prompt
    scores = []
    for _ in range(new_tokens):
        logits, caches = model(step_input, caches)
        step_input = logits.argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, step_input], dim=1)
        scores.append(logits.max(dim=-1).values)
    probabilities = torch.softmax(logits, dim=-1)
    return tokens, torch.stack(scores), probabilities


def main(mark, keep):
    model = Decoder().to(DEVICE).eval()
    results = []
    for _ in range(40):
        prompt = torch.randint(0, VOCABULARY, (8, random.randrange(8, 64)), device=DEVICE)
        tokens, scores, probabilities = generate(model, prompt, new_tokens=16)
        if keep:
            results.append({"tokens": tokens, "scores": scores, "probabilities": probabilities})
        else:
            results.append(tokens.tolist())
        mark()
