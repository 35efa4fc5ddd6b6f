"""Schedules: the learning rate of each optimizer step, and foreign ones of torch."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from dist_train.errors import ConfigError
from dist_train.trainer.schedules import Plateau, constant, cosine, linear, make_schedule, step_with_metric


def rates(target: object, steps: int, **args: object) -> list[float]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = make_schedule(target, args, optimizer, steps)  # type: ignore[arg-type]
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_cosine_warms_up_and_ends_near_its_final_rate() -> None:
    seen = rates(cosine, 10, warmup_steps=2, final=0.1)
    assert seen[:3] == [0.25, 0.5, 0.5]
    assert seen[6] == pytest.approx(0.5 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))
    assert seen == sorted(seen[:2]) + sorted(seen[2:], reverse=True)
    assert 0.05 < seen[-1] < 0.08


def test_linear_and_constant() -> None:
    assert rates(linear, 4) == [0.5, 0.375, 0.25, 0.125]
    assert rates(constant, 4, warmup_steps=2) == [0.25, 0.5, 0.5, 0.5]


def test_torchs_own_get_total_steps_only_if_they_take_it() -> None:
    assert rates(StepLR, 3, step_size=1, gamma=0.5) == [0.5, 0.25, 0.125]
    assert 1.9 < max(rates(OneCycleLR, 8, max_lr=2.0)) <= 2.0
    with pytest.raises(ConfigError, match="Closing wants closing"):
        rates(Closing, 3)


class Closing:
    """A schedule that wants something at each step."""

    def __init__(self, optimizer: SGD) -> None:
        pass

    def step(self, closing: float) -> None:
        pass


def made_plateau(target: object, **args: object) -> tuple[SGD, ReduceLROnPlateau]:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    return optimizer, make_schedule(target, args, optimizer, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [Plateau, ReduceLROnPlateau])
def test_a_plateau_lowers_the_rate_where_the_loss_no_longer_improves(target: object) -> None:
    optimizer, schedule = made_plateau(target, patience=1, factor=0.5)
    seen = []
    for loss in (1.0, 0.5, 0.6, 0.6, 0.7):
        step_with_metric(schedule, {"loss": loss, "accuracy": 0.0})
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == [0.5, 0.5, 0.5, 0.25, 0.25]


def test_a_plateau_follows_the_metric_that_it_names() -> None:
    optimizer, schedule = made_plateau(Plateau, metric="accuracy", mode="max", patience=0, factor=0.5)
    for accuracy in (0.5, 0.6, 0.6):
        step_with_metric(schedule, {"loss": 1.0, "accuracy": accuracy})
    assert optimizer.param_groups[0]["lr"] == 0.25
    with pytest.raises(ConfigError, match="no metric 'accuracy', but loss, acuracy"):
        step_with_metric(schedule, {"loss": 1.0, "acuracy": 0.0})


def test_a_plateau_that_would_follow_the_wrong_way_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode=None for the metric 'accuracy'"):
        made_plateau(Plateau, metric="accuracy")
    with pytest.raises(ConfigError, match="with mode='max' would follow the loss"):
        made_plateau(ReduceLROnPlateau, mode="max")


def test_state_is_plain_json_and_goes_on_where_it_was() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = cosine(optimizer, total_steps=10)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    state = json.loads(json.dumps(schedule.state_dict()))
    fresh_optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    fresh = cosine(fresh_optimizer, total_steps=10)
    fresh_optimizer.load_state_dict(optimizer.state_dict())
    fresh.load_state_dict(state)
    for one in (optimizer, fresh_optimizer):
        one.step()
    schedule.step()
    fresh.step()
    assert fresh_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
