"""What tests of strategies on a GPU share: a group of one rank, a small model, steps to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from dist_train.distributed.control_group import Control
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.strategies.base import places_model
from dist_train.strategies.prepare import check_options, load_strategy

DEVICE = torch.device("cuda", 0)
STEPS = 6


class Blocks(nn.Module):
    """Two layers in a list between two more."""

    def __init__(self, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        out: Tensor = self.last(x)
        return out


@contextmanager
def group_of_one() -> Iterator[Run]:
    """A run of one rank with a group on NCCL, so that strategies exchange as between several."""
    torch_dist.init_process_group(
        "cpu:gloo,cuda:nccl",
        store=torch_dist.HashStore(),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
        device_id=DEVICE,
    )
    try:
        control = Control(torch_dist.new_group(backend="gloo"), 0, 1)
        yield Run(RankInfo.from_env({}), DEVICE, control=control)
    finally:
        torch_dist.destroy_process_group()


def wrapped(model: nn.Module, run: Run, strategy: str, **options: Any) -> nn.Module:
    """What the strategy itself makes of a model: dt.prepare takes `single` for one rank."""
    chosen = load_strategy(strategy)
    placed = model if places_model(chosen) else model.to(run.device)
    return chosen.wrap(placed, run, check_options(chosen, options))


def model(dtype: torch.dtype = torch.float64, **arguments: Any) -> Blocks:
    """The same values each time, in CPU memory."""
    torch.manual_seed(0)
    return Blocks(**arguments).to(dtype)


def train(net: nn.Module, device: torch.device, clip: Any, steps: int = STEPS) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step with AdamW."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 0.01)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(4, 8, dtype=torch.float64, generator=generator).to(device)
        optimizer.zero_grad()
        loss = (net(inputs.to(next(net.parameters()).dtype)) - inputs).square().mean()
        loss.backward()
        norm = clip(net)
        optimizer.step()
        found.append((float(loss.detach()), float(norm)))
    return found


def clip_by_hand(net: nn.Module) -> Tensor:
    """torch's own."""
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
