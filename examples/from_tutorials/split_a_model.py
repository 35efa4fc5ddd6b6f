"""A model that is too large for one device, split over two.

python split_a_model.py

The trap: the layers are moved, but neither the activations between them nor the label: "Expected all
tensors to be on the same device". Two lines fix it, for any devices, also for a single one. (Without a
second GPU, torch's `meta` device takes its place: it has shapes only and computes nothing.)
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dist_train as dt


class Tutorial(nn.Module):
    """The first half on one device, the second on another."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(first)
        self.second = nn.Linear(16, 3).to(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [batch, 8] -> logits [batch, 3]."""
        return self.second(self.first(x))


class Ours(Tutorial):
    """The same two halves, with the activations moved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows [batch, 8] -> logits [batch, 3], on the second half's device."""
        hidden = self.first(dt.to_device(x, next(self.first.parameters()).device))
        return self.second(dt.to_device(hidden, next(self.second.parameters()).device))


def tutorial(first: str, second: str) -> torch.Tensor:
    """The loss of one batch."""
    x, y = torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    return cross_entropy(Tutorial(first, second)(x.to(first)), y.to(first))


def ours(first: str, second: str) -> torch.Tensor:
    """The loss of one batch; the label is moved to the output's device."""
    x, y = torch.randn(4, 8), torch.zeros(4, dtype=torch.int64)
    logits = Ours(first, second)(x)
    return cross_entropy(logits, dt.to_device(y, logits.device))


if __name__ == "__main__":
    two_cards = torch.cuda.device_count() >= 2
    for form in (tutorial, ours):
        try:
            loss = form(*(("cuda:0", "cuda:1") if two_cards else ("cpu", "meta")))
            print(f"{form.__name__}: loss on {loss.device}, requires_grad: {loss.requires_grad}")
        except RuntimeError as error:
            print(f"{form.__name__}: {str(error).splitlines()[0]}")
