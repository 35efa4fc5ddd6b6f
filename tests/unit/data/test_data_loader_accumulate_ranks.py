"""Accumulation in a plain loop trains what one process trains on whole steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess


def train(accumulate: int) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(22, width, generator=generator, dtype=torch.float64) for width in (3, 1))
    with dt.init(seed=0, device="cpu"):
        torch.manual_seed(1)
        model = dt.prepare(nn.Linear(3, 1, dtype=torch.float64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = dt.loader(TensorDataset(x, y), 8, accumulate=accumulate)
        for _ in range(2):
            for inputs, targets in loader:
                nn.functional.mse_loss(model(inputs), targets).backward()
                if loader.step_complete:
                    optimizer.step()
                    optimizer.zero_grad()
        return [float(one) for one in torch.cat([p.detach().reshape(-1) for p in model.parameters()])]


def test_uneven_micro_batches_of_a_plain_loop_train_what_one_process_trains() -> None:
    (expected,) = run_ranks(train, 1, args=(1,))
    for world_size, accumulate in ((1, 3), (2, 2), (3, 4)):
        for found in run_ranks(train, world_size, args=(accumulate,)):
            assert found == pytest.approx(expected, abs=1e-12), (world_size, accumulate)
