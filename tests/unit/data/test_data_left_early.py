"""A loop that is left with a batch it read and did not train on is warned about: the epoch misses it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess


def _step(model: nn.Module, x: torch.Tensor) -> None:
    model(x).mean().backward()


def look_at_a_batch(model: nn.Module, loader: Any) -> None:
    next(iter(loader))
    for (x,) in loader:
        _step(model, x)


def limit_at_the_next_batch(model: nn.Module, loader: Any) -> None:
    for index, (x,) in enumerate(loader):
        if index >= 2:
            break
        _step(model, x)


def limit_after_the_step(model: nn.Module, loader: Any) -> None:
    for index, (x,) in enumerate(loader):
        _step(model, x)
        if index == 1:
            break


def accumulated(model: nn.Module, loader: Any) -> None:
    for index, (x,) in enumerate(loader):
        _step(model, x)
        if index == 2:
            return


def statistics(model: nn.Module, loader: Any) -> None:
    for index, _ in enumerate(loader):
        if index == 2:
            return


def whole_epoch(model: nn.Module, loader: Any) -> None:
    for (x,) in loader:
        _step(model, x)
    for _ in loader:
        pass


LOOPS: dict[Callable[[nn.Module, Any], None], int] = {
    look_at_a_batch: 1,
    limit_at_the_next_batch: 1,
    limit_after_the_step: 0,
    accumulated: 0,
    statistics: 0,
    whole_epoch: 0,
}


def _warnings() -> list[int]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("dist_train.data.left_early").addHandler(handler)
    numbers = []
    with dt.init(seed=0):
        for loop in LOOPS:
            said.clear()
            loop(dt.prepare(nn.Linear(2, 1)), dt.loader(TensorDataset(torch.ones(23, 2)), 4))
            numbers.append(len(said))
    return numbers


def test_a_batch_that_a_left_loop_did_not_train_on_is_said_once() -> None:
    assert run_ranks(_warnings, 1) == [list(LOOPS.values())]
