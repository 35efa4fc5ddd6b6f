"""A prepared model with buffers, in evaluations where the ranks have unlike numbers of batches."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dist_train as dt

pytestmark = pytest.mark.multiprocess

SAMPLES = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2)


def _net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


def _evaluate(run: dt.Run, model: nn.Module, loader: Any, recorded: bool) -> float:
    grads: AbstractContextManager[Any] = nullcontext() if recorded else torch.no_grad()
    model.eval()
    total, count = 0.0, 0
    with grads:
        for (x,) in loader:
            total, count = total + model(x).square().sum().item(), count + len(x)
    model.train()
    return run.mean(total, count)


def _rounds(meeting: str, n: int, recorded: bool) -> list[tuple[float, dict[str, torch.Tensor]]]:
    """Train, evaluate and train on; of each round the metric and the weights it was of."""
    with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=15) as run:
        model = dt.prepare(_net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held_out = dt.loader(TensorDataset(SAMPLES[:n]), 2, evaluation=True)
        rounds = []
        for _ in range(3):
            for (x,) in dt.loader(TensorDataset(SAMPLES), 6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            metric = _evaluate(run, model, held_out, recorded)
            state = {name: value.clone() for name, value in dt.unwrap(model).state_dict().items()}
            rounds.append((metric, state))
        return rounds


@pytest.mark.proves(
    "A prepared model with BatchNorm is evaluated exactly where ranks have unlike numbers of batches",
    limits="W = 2, 3; N from 1 to 7; with and without torch.no_grad",
)
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("world_size", "n"), [(1, 7), (2, 1), (2, 7), (3, 1), (3, 2), (3, 7)])
def test_an_evaluation_is_that_of_rank_0s_model(ranks: Any, world_size: int, n: int, recorded: bool) -> None:
    answers = ranks(world_size, _rounds, n, recorded)
    first = answers[0]
    for each in answers:
        for (metric, state), (_, wanted) in zip(each, first, strict=True):
            plain = _net()
            plain.load_state_dict(wanted)
            alone = plain.eval()(SAMPLES[:n]).square().mean().item()
            assert metric == pytest.approx(alone, rel=1e-12)
            assert all(torch.equal(state[name], wanted[name]) for name in state), "also the buffers"


def test_an_evaluation_changes_no_later_forward_pass(ranks: Any) -> None:
    """The exchange of the next training pass takes place as if there had been no evaluation."""

    def rank_main(meeting: str) -> list[bool]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=15) as run:
            model = dt.prepare(_net())
            norm: Any = dt.unwrap(model).get_submodule("1")
            exchanged: list[bool] = []

            def note(module: Any, args: Any) -> None:
                if module.training:
                    exchanged.append(bool((module.running_mean == 0).all()))

            model(SAMPLES[:4]).mean().backward()
            norm.running_mean.fill_(float(run.rank))
            _evaluate(run, model, dt.loader(TensorDataset(SAMPLES[:1]), 2, evaluation=True), False)
            exchanged.append(bool((norm.running_mean == 0).all()))
            norm.register_forward_pre_hook(note)
            norm.running_mean.fill_(float(run.rank))
            model(SAMPLES[:4])
            return exchanged

    assert ranks(2, rank_main) == [[True, True]] * 2


def _folds(meeting: str) -> list[float]:
    """Prepare and evaluate one model after the other; rank 0 alone frees them in between."""
    with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=15) as run:
        gc.disable()
        metrics = []
        for _ in range(3):
            model = dt.prepare(_net())
            model.cycle = [model]  # type: ignore[assignment]  # only the collector frees it
            metrics.append(
                _evaluate(run, model, dt.loader(TensorDataset(SAMPLES[:3]), 1, evaluation=True), False)
            )
            del model
            if run.is_main:
                gc.collect()
        return metrics


def test_models_that_one_rank_has_freed_already_are_left_out(ranks: Any) -> None:
    """The collector of cycles runs at unlike times per rank: some still have models that others have not."""
    first, second = ranks(2, _folds)
    assert first == second
