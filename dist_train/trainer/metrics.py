"""Metrics that a config can name: each gives (sum, count) of one batch, so that any split adds up."""

from __future__ import annotations

import torch
from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Right answers and all answers; outputs are [batch, classes] scores, targets are class ids."""
    return (outputs.argmax(dim=-1) == targets).sum(), targets.numel()


def top_k(outputs: Tensor, targets: Tensor, k: int = 5) -> tuple[Tensor, int]:
    """Answers among the k best scores, and all answers."""
    best = torch.topk(outputs, k, dim=-1).indices
    return (best == targets.unsqueeze(-1)).any(dim=-1).sum(), targets.numel()
