"""A model that returns a torch.distributions object trains on two ranks as in one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Normal
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.testing import run_ranks


class Policy(nn.Module):
    """A mean by a layer, a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(3, 1, dtype=torch.float64)
        self.log_scale = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Distribution:
        return Normal(self.mean(x), self.log_scale.exp())


def trained() -> list[float]:
    """The parameters after two epochs of 7 samples in steps of 4."""
    with dt.init(device="cpu", timeout_s=20):
        torch.manual_seed(3)
        x = torch.randn(7, 3, dtype=torch.float64)
        data = dt.loader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=False)
        model = dt.prepare(Policy())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _epoch in range(2):
            for inputs, target in data:
                loss = -model(inputs).log_prob(target).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [
            number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()
        ]


@pytest.mark.multiprocess
def test_a_distribution_is_a_model_s_output_at_two_ranks_too() -> None:
    (alone,) = run_ranks(trained, 1)
    first, second = run_ranks(trained, 2)
    assert first == second
    assert first == pytest.approx(alone, rel=1e-12)
