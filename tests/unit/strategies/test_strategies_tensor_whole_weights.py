"""Tensor parallelism: weights that every rank has whole, between cut layers and in blocks that run again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.errors import UsageError
from dist_train.strategies.blocks.activation_checkpointing import checkpoint_activations
from dist_train.testing import run_ranks

BOTH = [("tensor_parallel", 2, 2, 1), ("fsdp_tensor_parallel", 4, 2, 2)]


class _Scaled(nn.Module):
    """A slope and a gate between a colwise and a rowwise layer, each whole on every rank."""

    def __init__(self, inside: str) -> None:
        super().__init__()
        self.up, self.down, self.inside = nn.Linear(6, 8), nn.Linear(8, 6), inside
        self.slope, self.gate = nn.PReLU(), nn.Linear(6, 1)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        hidden = self.slope(hidden) if self.inside == "slope" else hidden.tanh()
        hidden = hidden * self.gate(x) if self.inside == "gate" else hidden
        return x * self.gate(x) + self.slope(self.down(hidden))


def gradients_of_parts(strategy: str, inside: str) -> str:
    with dt.init(device="cpu", seed=0, timeout_s=20):
        torch.manual_seed(0)
        model = dt.prepare(_Scaled(inside), strategy, plan={"up": "colwise", "down": "rowwise"})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            for step in range(3):  # the rowwise weight is zero at first, and so is what comes before it
                optimizer.zero_grad()
                x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
                model(x).square().sum().backward()
                optimizer.step()
        except UsageError as error:
            return str(error)
        return "trained"


@pytest.mark.first_cases(2)
@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "ranks", "tensor", "shard"), BOTH)
@pytest.mark.parametrize(
    ("inside", "said"), [("", "trained"), ("slope", "'slope.weight'"), ("gate", "'gate.")]
)
def test_a_whole_weight_between_cut_layers_is_refused_where_its_gradient_is_of_a_part(
    strategy: str, ranks: int, tensor: int, shard: int, inside: str, said: str
) -> None:
    for found in run_ranks(gradients_of_parts, ranks, args=(strategy, inside)):
        assert said in found


class _Scales(nn.Module):
    """Cut layers and weights that every rank has whole, in modules and beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(self.up(self.norm(x)).tanh())


def checkpointed_steps(strategy: str, options: dict[str, Any]) -> list[float]:
    with dt.init(device="cpu", seed=0, timeout_s=20):
        torch.manual_seed(0)
        plain = nn.Sequential(_Scales(), _Scales()).double()
        model = dt.prepare(checkpoint_activations(plain, ["_Scales"]), strategy, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 2, 24).double().view(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "ranks", "tensor", "shard"), BOTH)
def test_activations_of_blocks_with_whole_weights_are_computed_again(
    strategy: str, ranks: int, tensor: int, shard: int
) -> None:
    (expected,) = run_ranks(checkpointed_steps, 1, args=("single", {}))
    plan = {"*.up": "colwise", "*.down": "rowwise"}
    for found in run_ranks(checkpointed_steps, ranks, args=(strategy, {"plan": plan})):
        assert found == pytest.approx(expected, rel=1e-9)
