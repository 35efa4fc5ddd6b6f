"""dt.no_sync, dt.clip_grad_norm_ and dt.prepare(mesh=…): the same lines with every strategy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError, UsageError
from dist_train.testing import run_ranks


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def batch(number: int) -> torch.Tensor:
    return torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def train(strategy: str, mesh: dict[str, int] | None) -> tuple[list[float], list[float]]:
    """Norms of three steps of two batches each, and the weights after them."""
    with dt.init(device="cpu", timeout_s=20) as run:
        model = dt.prepare(net(), strategy, mesh=mesh)
        optimizer, norms = torch.optim.SGD(model.parameters(), 0.5), []
        for step in range(3):
            optimizer.zero_grad()
            first, second = (batch(2 * step + part)[run.rank :: run.world_size] for part in range(2))
            with dt.no_sync(model):
                model(first).square().mean().backward()
            model(second).square().mean().backward()
            norms.append(float(dt.clip_grad_norm_(model, 0.1)))
            optimizer.step()
        return norms, [v for p in model.parameters() for v in _whole(p).flatten().tolist()]


def _whole(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("strategy", "ranks", "mesh"),
    [
        ("ddp", 2, None),
        ("ddp", 1, None),
        ("fsdp", 2, {"shard": 2}),
        ("hsdp", 4, {"replicate": 2, "shard": 2}),
        ("hsdp", 4, {"replicate": 4, "shard": 1}),
    ],
)
def test_accumulated_and_clipped_as_in_one_process(
    strategy: str, ranks: int, mesh: dict[str, int] | None
) -> None:
    model = net()
    optimizer, expected = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            model(batch(2 * step + part)).square().mean().backward()
        expected.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
    weights = [v for p in model.parameters() for v in p.detach().flatten().tolist()]
    for norms, found in run_ranks(train, ranks, args=(strategy, mesh)):
        assert norms == pytest.approx(expected, rel=1e-9)
        assert found == pytest.approx(weights, rel=1e-9)


def test_a_model_that_was_not_prepared_is_refused() -> None:
    with dt.init(device="cpu"):
        model = dt.prepare(net())
        with pytest.raises(UsageError, match=r"dt\.no_sync: this Linear is not what dt\.prepare"):
            dt.no_sync(model[0])
        with pytest.raises(UsageError, match=r"dt\.clip_grad_norm_"):
            dt.clip_grad_norm_(net(), 1.0)


def wrong_mesh(strategy: str, mesh: dict[str, int]) -> str:
    with dt.init(device="cpu", timeout_s=20), pytest.raises(ConfigError) as caught:
        dt.prepare(net(), strategy, mesh=mesh)
    return str(caught.value)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("strategy", "mesh", "said"),
    [
        ("fsdp", {"shard": 4}, "strategy 'fsdp' has the mesh shard 2 on 2 rank(s), not shard 4"),
        ("fsdp", {"replicate": 2}, "not replicate 2"),
        ("ddp", {"shard": 2}, "strategy 'ddp' has the mesh replicate 2"),
        ("hsdp", {"replicate": 2, "shard": 2}, "replicate 2 x shard 2 on 2 ranks"),
    ],
)
def test_a_mesh_that_the_strategy_has_not_is_refused(strategy: str, mesh: dict[str, int], said: str) -> None:
    for each in run_ranks(wrong_mesh, 2, args=(strategy, mesh)):
        assert said in each
