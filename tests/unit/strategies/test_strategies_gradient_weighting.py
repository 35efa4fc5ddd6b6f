"""A plain loop over uneven batches has the gradient of one process over the whole step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.distributed.pytree import map_tensors
from dist_train.strategies.warmup import trained_tensors


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    return x, torch.randn(7, 2, generator=generator, dtype=torch.float64)


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def _grads(model: nn.Module) -> list[float]:
    return [value for p in model.parameters() if p.grad is not None for value in p.grad.flatten().tolist()]


@pytest.mark.multiprocess
@pytest.mark.parametrize("total", [7, 2])
def test_uneven_plain_loop_gradients_equal_one_process(ranks: Any, total: int) -> None:
    """7 samples on 3 ranks are 3 + 2 + 2; with 2 samples rank 2 has a placeholder of weight 0."""

    def step(meeting: str) -> list[float]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            model = dt.prepare(_model())
            x, y = _data()
            for _ in range(2):  # the first one also warms up
                model.zero_grad()
                mine = torch.arange(total)[run.rank :: run.world_size]
                run.batch_weight.local, run.batch_weight.total = len(mine), total
                if len(mine) == 0:
                    y, mine = y / 0.0, torch.tensor([0])  # a placeholder, even one with an infinite loss
                nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            return _grads(model)

    alone = _model()
    x, y = _data()
    nn.functional.mse_loss(alone(x[:total]), y[:total]).backward()
    for grads in ranks(3, step):
        assert grads == pytest.approx(_grads(alone), rel=1e-12, abs=1e-14)


@dataclass
class _Output:
    logits: torch.Tensor
    extra: list[Any]


def test_every_tensor_of_a_nested_output_is_reached() -> None:
    one = torch.ones(1, requires_grad=True)
    output = {"a": (one * 1, [one * 2]), "b": _Output(one * 3, [one * 4, "text", None, torch.ones(1)])}
    assert sorted(tensor.item() for tensor in trained_tensors(output)) == [1, 2, 3, 4]
    doubled = map_tensors(output, lambda tensor: tensor * 2)
    assert doubled["b"].extra[0].item() == 8
    assert doubled["b"].extra[1:3] == ["text", None]
    assert output["b"].logits.item() == 3  # type: ignore[union-attr]
