"""An evaluation is exact and leaves no trace."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dist_train.data.exact_loader import ExactLoader
from dist_train.distributed.control_group import Control, Deferred
from dist_train.trainer.evaluate import evaluate
from dist_train.trainer.metrics import accuracy
from dist_train.trainer.step import Forward
from dist_train.trainer.task import SupervisedTask


class Draws(nn.Module):
    """Moves every RNG state and counts its calls in a buffer, also in an evaluation."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(1), random.random(), np.random.rand()
        self.calls += 1
        return x


def test_an_evaluation_is_the_plain_mean_and_changes_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Draws(), nn.Linear(8, 3)
    ).double()
    x, y = torch.randn(11, 4, dtype=torch.float64), torch.randint(0, 3, (11,))
    model(x)  # gives the batch norm something to remember
    model[1].eval()  # a user may have frozen it
    before = {name: value.clone() for name, value in model.state_dict().items()}
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]

    task = SupervisedTask(nn.functional.cross_entropy, {"accuracy": accuracy})
    forward = Forward(model, task, "fp32", torch.device("cpu"))
    loader = ExactLoader(TensorDataset(x, y), 4, shuffle=False)
    first = evaluate(forward, loader, Control())
    assert evaluate(forward, loader, Control()) == first

    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), streams[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == streams[1:]  # type: ignore[index]
    with torch.no_grad():
        outputs = model.eval()(x)
    assert abs(first.loss - nn.functional.cross_entropy(outputs, y).item()) < 1e-12
    assert first.metrics["accuracy"] == (outputs.argmax(1) == y).double().mean().item()


class Noting(Control):
    """One process; notes what it was asked to add up."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def sum_later(self, values: list[float]) -> Deferred[list[float]]:
        self.seen.append(values)
        return Deferred(lambda: values)


def test_a_mean_does_not_depend_on_how_the_ranks_split_it() -> None:
    """Ranks 0 to 2 of three, their sums added by hand: two steps of 4, one of 3, empty shares included."""
    x, y = torch.randn(11, 4), torch.randint(0, 3, (11,))
    task = SupervisedTask(nn.functional.cross_entropy)
    forward = Forward(nn.Linear(4, 3), task, "fp32", torch.device("cpu"))
    whole = evaluate(forward, ExactLoader(TensorDataset(x, y), 4, shuffle=False), Control()).loss
    for world_size in (2, 3, 8):
        control = Noting()
        for rank in range(world_size):
            loader = ExactLoader(TensorDataset(x, y), 4, shuffle=False, rank=rank, world_size=world_size)
            evaluate(forward, loader, control)
        _, total, units = (sum(column) for column in zip(*control.seen, strict=True))
        assert units == 11
        assert abs(total / units - whole) < 1e-6 * whole
