"""Tasks, metrics, units and metric sums on one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dist_train.data.batch_partition import MicroBatch
from dist_train.distributed.control_group import Control
from dist_train.errors import ConfigError
from dist_train.trainer.loss_normalizer import UnitCounter
from dist_train.trainer.metrics import accuracy, top_k
from dist_train.trainer.records.metric_sums import MetricSums, Reducer
from dist_train.trainer.task import LossOutput, NextTokenTask, SupervisedTask, Task


def micro_batch(batch: Any, count: int, step_count: int = 8) -> MicroBatch:
    return MicroBatch(batch, count, step_count, step=0, micro=0, micros=1, samples_in_epoch=step_count)


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
    units = UnitCounter(NextTokenTask(), Control(), micro_batch(windows, 4))
    assert units.of_step([micro_batch(windows, 4, step_count=8)])[0] == 80
    assert units.of_micro_batch(micro_batch(windows[:1], 0)) == 0
    with pytest.raises(ConfigError, match="units per sample differ"):
        units.of_step([micro_batch(windows[:, :6], 4)])


def test_units_that_vary_are_counted_where_they_lie() -> None:
    tokens = torch.tensor([[1, 2, 3, 0], [4, 4, 0, 0]])
    task = NextTokenTask(ignore_index=0)
    units = UnitCounter(task, Control(), micro_batch(tokens, 2))
    held = [micro_batch(tokens, 2), micro_batch(tokens[:1], 0), micro_batch(tokens[1:], 1)]
    assert units.of_step(held)[0] == 4
    with pytest.raises(ConfigError, match="nothing to learn from"):
        units.of_step([micro_batch(torch.zeros_like(tokens), 2)])


def test_metric_sums_ignore_samples_of_weight_0_but_keep_their_names() -> None:
    metric_sums = MetricSums()
    metric_sums.add(LossOutput(torch.tensor(6.0), {"accuracy": (torch.tensor(1), 2)}), units=2, counts=True)
    metric_sums.add(LossOutput(torch.tensor(3.0), {"accuracy": (torch.tensor(2), 2)}), units=1, counts=True)
    metric_sums.add(
        LossOutput(torch.tensor(float("nan")), {"accuracy": (5, 5), "late": (1, 1)}), 7, counts=False
    )
    means = Reducer(Control()).means(metric_sums)
    assert (means.loss, means.metrics["accuracy"]) == (3.0, 0.75)
    assert math.isnan(means.metrics["late"])


def test_metrics_that_come_and_go_are_refused() -> None:
    reducer = Reducer(Control())
    first, second = MetricSums(), MetricSums()
    first.add(LossOutput(torch.tensor(1.0), {"a": (1, 1)}), units=1, counts=True)
    second.add(LossOutput(torch.tensor(1.0), {"b": (1, 1)}), units=1, counts=True)
    assert reducer.means(first).metrics == {"a": 1.0}
    with pytest.raises(ConfigError, match=r"metrics differ(.|\n)*have others than \['a'\]"):
        reducer.means(second)
