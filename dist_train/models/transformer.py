"""A small causal transformer over bytes with tied input embedding and output head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class ByteTransformer(nn.Module):
    """Pre-norm decoder. `head.weight` IS `embedding.weight`: both names are in the state dict.

    Args:
        vocab: number of tokens.
        width: features per token.
        depth: number of blocks.
        heads: attention heads per block; a divisor of width.
        context: longest sequence.
        dropout: probability in attention, after each sub-layer and after the embedding.
    """

    def __init__(
        self,
        vocab: int = 256,
        width: int = 32,
        depth: int = 2,
        heads: int = 2,
        context: int = 64,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.features_per_head = width // heads
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embedding.weight
        # The tied matrix also makes the logits: the embedding's usual std of 1 would make them far too large.
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens int64 [batch, seq] -> logits [batch, seq, vocab]."""
        x = self._embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self._logits(x)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x: torch.Tensor = self.dropout(self.embedding(tokens) + self.positions(places))
        return x

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(x))
        return logits

    def tensor_parallel_plan(self) -> dict[str, dict[str, object] | str]:
        """Name the layers that strategy `tensor_parallel` cuts: attention by heads, and the hidden layer."""
        return {
            "blocks.*.qkv": {"style": "fused_colwise", "parts": 3, "block": self.features_per_head},
            "blocks.*.out": "rowwise",
            "blocks.*.mlp.1": "colwise",
            "blocks.*.mlp.3": "rowwise",
        }

    def pipeline_layers(self) -> list[tuple[Callable[[torch.Tensor], torch.Tensor], tuple[str, ...]]]:
        """What `forward` does, step by step, with the names of what each step uses."""
        blocks = [(block, (f"blocks.{place}",)) for place, block in enumerate(self.blocks)]
        return [(self._embed, ("embedding", "positions")), *blocks, (self._logits, ("norm", "head"))]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self._attend(self.attention_norm(x)))
        out: torch.Tensor = x + self.dropout(self.mlp(x))
        return out

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        # [batch, seq, 3 * width] -> three of [batch, heads, seq, width / heads]
        # Under tensor parallelism a rank has some of the heads: their number is what qkv gives.
        q, k, v = self.qkv(x).view(batch, seq, 3, -1, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.attention_dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return joined
