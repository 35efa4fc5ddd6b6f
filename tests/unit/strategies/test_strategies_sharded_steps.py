"""Sharded models in own loops: the weights are those of one process, whatever comes between steps."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.testing import run_ranks
from dist_train.trainer.callbacks.ema import EMA


class Small(nn.Module):
    """One unit, and a rest that torch leaves gathered after a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def whole(model: nn.Module) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        found[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).flatten().tolist()
    return found


def looked_at_before_the_step(strategy: str, options: dict[str, Any]) -> dict[str, list[float]]:
    """Train with a forward pass between the backward pass and the step, as for an accuracy."""
    with dt.init(device="cpu", seed=0, timeout_s=60):
        torch.manual_seed(0)
        model = dt.prepare(Small().double(), strategy, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x = torch.ones(2, 3).double()
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            model(x)
            optimizer.step()
        return whole(model)


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", [{}, {"reshard_after_forward": False}])
def test_a_forward_pass_before_the_step_does_not_keep_the_weights_of_before_it(
    options: dict[str, Any],
) -> None:
    (expected,) = run_ranks(looked_at_before_the_step, 1, args=("ddp", {}))
    for found in run_ranks(looked_at_before_the_step, 2, args=("fsdp", options)):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-9)


class Points(torch.utils.data.Dataset[torch.Tensor]):
    """Five samples: ranks have unlike shares of them."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.linspace(-1, 1, 3).double() * (index + 1)


def trained_again(strategy: str, options: dict[str, Any]) -> dict[str, list[float]]:
    """Freeze a unit after dt.prepare, and let it train from the second epoch on."""
    with dt.init(device="cpu", seed=0, timeout_s=60):
        torch.manual_seed(0)
        small = Small().double()
        model = dt.prepare(small, strategy, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for epoch in range(2):
            small.layers.requires_grad_(epoch == 1)
            for x in dt.loader(Points(), batch_size=5):
                optimizer.zero_grad()
                model(x).square().sum(1).mean().backward()
                optimizer.step()
        return whole(small)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("strategy", "ranks", "options"), [("fsdp", 2, {}), ("hsdp", 4, {"replicate": 2})])
def test_gradients_of_a_unit_that_trains_again_count_by_their_samples(
    strategy: str, ranks: int, options: dict[str, Any]
) -> None:
    (expected,) = run_ranks(trained_again, 1, args=("ddp", {}))
    for found in run_ranks(trained_again, ranks, args=(strategy, options)):
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-9)


class Scaled(Small):
    """A buffer that the graph of a forward pass keeps."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def two_calls_in_one_loss() -> dict[str, list[float]]:
    with dt.init(device="cpu", seed=0, timeout_s=60):
        torch.manual_seed(0)
        model = dt.prepare(Scaled().double(), "fsdp")
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x = torch.ones(2, 3).double()
        for _ in range(2):
            optimizer.zero_grad()
            (model(x).square().sum() + model(-x).sum()).backward()
            optimizer.step()
        return whole(model)


@pytest.mark.multiprocess
def test_a_model_with_buffers_may_be_called_several_times_before_the_backward_pass() -> None:
    (expected,) = run_ranks(two_calls_in_one_loss, 1)
    for found in run_ranks(two_calls_in_one_loss, 2):
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-9)


def of_unlike_units(exchanged_each_time: bool) -> tuple[dict[str, list[float]], bool]:
    """Gradients of two calls of run.backward, added up in float32; pending after the first."""
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        torch.manual_seed(0)
        model = dt.prepare(Small(), "fsdp", param_dtype="bf16", reduce_dtype="fp32")
        x = torch.ones(8, 3)
        with nullcontext() if exchanged_each_time else dt.no_sync(model):
            run.backward(model(x).square().sum(), units=8)
        pending = run.gradients.has_unreduced()
        run.backward(model(-x[:1]).sum(), units=1)
        gradients: dict[str, Any] = {name: p.grad for name, p in model.named_parameters()}
        return {name: one.full_tensor().flatten().tolist() for name, one in gradients.items()}, pending


@pytest.mark.multiprocess
def test_gradients_that_wait_in_another_dtype_are_rescaled_to_the_sum_of_units() -> None:
    expected, none = run_ranks(of_unlike_units, 2, args=(True,))[0]
    for found, pending in run_ranks(of_unlike_units, 2, args=(False,)):
        assert (none, pending) == (False, True)
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=0.05, abs=0.005)


class Normed(Small):
    """Buffers that an average takes in, beside sharded parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(super().forward(x))
        return found


def averages(strategy: str) -> dict[str, list[float]]:
    """The averages of a callback after a step that sets all weights to 1."""
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        torch.manual_seed(0)
        model = dt.unwrap(dt.prepare(Normed(), strategy))
        context: Any = SimpleNamespace(model=model, run=run, step=1)
        average = EMA(decay=0.5)
        average.on_start(context)
        with torch.no_grad():
            for one in (*model.parameters(), model.get_buffer("norm.running_mean")):
                one.fill_(1.0)
        average.on_step_end(context)
        state: dict[str, Any] = average.state_dict()
        return {
            name: (one.full_tensor() if hasattr(one, "full_tensor") else one).flatten().tolist()
            for name, one in state.items()
        }


@pytest.mark.multiprocess
def test_an_average_takes_in_plain_buffers_beside_sharded_parameters() -> None:
    (expected,) = run_ranks(averages, 1, args=("ddp",))
    assert expected["norm.running_mean"] == [0.5] * 4
    assert run_ranks(averages, 2, args=("fsdp",)) == [expected] * 2
