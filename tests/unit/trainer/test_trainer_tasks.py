"""Tasks, metrics, units and tallies on one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dist_train.data.shares import Share
from dist_train.distributed.control import Control
from dist_train.errors import ConfigError
from dist_train.trainer.metrics import accuracy, top_k
from dist_train.trainer.tally import Reducer, Tally
from dist_train.trainer.task import LossOutput, NextTokenTask, SupervisedTask, Task
from dist_train.trainer.units import UnitCounter


def share(batch: Any, count: int, step_count: int = 8) -> Share:
    return Share(batch, count, step_count, step=0, micro=0, micros=1, samples_in_epoch=step_count)


class Logits(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, 5).float() * 9


def test_supervised_sums_over_samples() -> None:
    task = SupervisedTask(nn.functional.cross_entropy, {"accuracy": accuracy})
    logits, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    output = task.loss(nn.Identity(), (logits, targets))
    assert isinstance(task, Task)
    assert task.units((logits, targets)) == 6
    assert output.total.item() == pytest.approx(6 * nn.functional.cross_entropy(logits, targets).item())
    top, bottom = output.metrics["accuracy"]
    assert (float(top), bottom) == (float((logits.argmax(1) == targets).sum()), 6)
    assert top_k(logits, targets, k=3)[0] == 6


def test_next_token_counts_only_what_is_predicted() -> None:
    tokens = torch.tensor([[1, 2, 3, 0], [4, 4, 0, 0]])
    plain, padded = NextTokenTask(), NextTokenTask(ignore_index=0)
    assert (plain.units(tokens), plain.units((tokens[:, :-1], tokens[:, 1:]))) == (6, 6)
    assert (padded.units(tokens), padded.units_vary) == (3, True)
    assert plain.loss(Logits(), tokens).total.item() == pytest.approx(
        plain.loss(Logits(), (tokens[:, :-1], tokens[:, 1:])).total.item()
    )
    right, kept = padded.loss(Logits(), tokens).metrics["accuracy"]
    assert (int(right), int(kept)) == (1, 3)  # 4 follows 4


def test_units_of_a_step_follow_from_the_position() -> None:
    windows = torch.zeros(4, 11, dtype=torch.long)
    units = UnitCounter(NextTokenTask(), Control(), share(windows, 4))
    assert units.of_step([share(windows, 4, step_count=8)]) == 80
    assert units.of_share(share(windows[:1], 0)) == 0
    with pytest.raises(ConfigError, match="units per sample differ"):
        units.of_step([share(windows[:, :6], 4)])


def test_units_that_vary_are_counted_where_they_lie() -> None:
    tokens = torch.tensor([[1, 2, 3, 0], [4, 4, 0, 0]])
    task = NextTokenTask(ignore_index=0)
    units = UnitCounter(task, Control(), share(tokens, 2))
    assert units.of_step([share(tokens, 2), share(tokens[:1], 0), share(tokens[1:], 1)]) == 4
    with pytest.raises(ConfigError, match="nothing to learn from"):
        units.of_step([share(torch.zeros_like(tokens), 2)])


def test_tally_ignores_samples_of_no_weight_but_knows_their_names() -> None:
    tally = Tally()
    tally.add(LossOutput(torch.tensor(6.0), {"accuracy": (torch.tensor(1), 2)}), units=2, counts=True)
    tally.add(LossOutput(torch.tensor(3.0), {"accuracy": (torch.tensor(2), 2)}), units=1, counts=True)
    tally.add(LossOutput(torch.tensor(float("nan")), {"accuracy": (5, 5), "late": (1, 1)}), 7, counts=False)
    means = Reducer(Control()).means(tally)
    assert (means.loss, means.metrics["accuracy"]) == (3.0, 0.75)
    assert math.isnan(means.metrics["late"])


def test_metrics_that_come_and_go_are_refused() -> None:
    reducer = Reducer(Control())
    first, second = Tally(), Tally()
    first.add(LossOutput(torch.tensor(1.0), {"a": (1, 1)}), units=1, counts=True)
    second.add(LossOutput(torch.tensor(1.0), {"b": (1, 1)}), units=1, counts=True)
    assert reducer.means(first).metrics == {"a": 1.0}
    with pytest.raises(ConfigError, match=r"metrics differ(.|\n)*have others than \['a'\]"):
        reducer.means(second)
