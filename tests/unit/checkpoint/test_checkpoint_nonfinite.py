"""A checkpoint whose weights are not finite never costs the last one whose are."""

from __future__ import annotations

import logging

import pytest
import torch
from checkpoint_cases import Training, manager
from checkpoint_places import Place
from torch import nn


def save(place: Place, *steps: int, value: float = 1.0) -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = value
    keeper = manager(place.location, keep_last=2)
    for step in steps:
        keeper.save(step, {"model": model})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_last_finite_one_is_never_removed(place: Place, value: float) -> None:
    save(place, 1, 2)
    save(place, 3, 4, 5, value=value)
    assert manager(place.location).steps() == [2, 4, 5]
    save(place, 6, 7)
    assert manager(place.location).steps() == [6, 7]


def test_saving_and_restoring_one_is_warned_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    save(place, 1)
    with caplog.at_level(logging.WARNING):
        save(place, 2, value=float("nan"))
    assert "step 2 is saved with weights that are not finite (model/weight)" in caplog.text
    assert "step 1 is kept" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        manager(place.location).load_latest({"model": nn.Linear(2, 2)})
    assert "step 2 holds weights that are not finite; the last finite one is step 1" in caplog.text


def test_a_mask_of_infinities_in_a_buffer_is_finite_enough(place: Place) -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    manager(place.location).save(1, {"model": Masked()})
    keeper = manager(place.location)
    assert "non_finite" not in place.storage.read("step-00000001/state.json").decode()
    assert keeper.steps() == [1]


def test_a_nan_in_a_buffer_or_in_the_optimizer_counts(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    training = Training()
    training.train(1)
    state = next(iter(training.optimizer.state.values()))
    next(tensor for tensor in state.values() if isinstance(tensor, torch.Tensor) and tensor.dim()).fill_(
        float("nan")
    )
    with caplog.at_level(logging.WARNING):
        manager(place.location).save(1, training.state)
    assert "weights that are not finite (optim/" in caplog.text
