"""Models for tests of tensor parallelism, and what their layers hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout


class Tied(nn.Module):
    """An embedding tied to the output layer, a fused gate and a branch that drops values."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.drop = drop
        self.embedding = nn.Embedding(12, 6)
        self.norm = nn.LayerNorm(6)
        self.gated = nn.Linear(6, 24)
        self.down = nn.Linear(12, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        gate, value = self.gated(x).chunk(2, dim=-1)
        x = x + dropout(self.down(torch.tanh(gate) * value), self.drop)
        logits: torch.Tensor = self.head(x)
        return logits


PLAN: dict[str, Any] = {"gated": "fused_colwise:2", "down": "rowwise"}
VOCABULARY: dict[str, Any] = {**PLAN, "embedding": "embedding", "head": "colwise_gathered"}


def made(seed: int = 0, drop: float = 0.0) -> Tied:
    """The model of a seed; no random number is used up."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Tied(drop).double()
