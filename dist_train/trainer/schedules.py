"""Learning-rate schedules: factors of the optimizer's own rate by step, or by a metric of the evaluation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from dist_train.errors import ConfigError
from dist_train.near_names import nearest


def cosine(optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> LambdaLR:
    """Linear warm-up, then half a cosine down to `final` times the optimizer's rate."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return final + (1 - final) * (1 + math.cos(math.pi * _progress(step, warmup_steps, total_steps))) / 2

    return LambdaLR(optimizer, factor)


def linear(optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> LambdaLR:
    """Linear warm-up, then a straight line down to `final` times the optimizer's rate."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return 1 - (1 - final) * _progress(step, warmup_steps, total_steps)

    return LambdaLR(optimizer, factor)


def constant(optimizer: Optimizer, warmup_steps: int = 0) -> LambdaLR:
    """Linear warm-up, then the optimizer's rate."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0)


class Plateau(ReduceLROnPlateau):
    """Torch's ReduceLROnPlateau, stepped with one metric after each evaluation.

    Args:
        metric: `loss`, or the name of a metric of the evaluation.
        mode: min where less is better, max where more is; may be left out for the loss.
        options: of ReduceLROnPlateau: factor, patience (in evaluations), threshold, cooldown, min_lr, ….
    """

    def __init__(
        self, optimizer: Optimizer, metric: str = "loss", mode: str | None = None, **options: Any
    ) -> None:
        if mode is None and metric == "loss":
            mode = "min"
        if mode not in ("min", "max"):
            raise ConfigError(
                f"schedule: mode={mode!r} for the metric {metric!r}",
                hint="mode: max where more is better, mode: min where less is",
            )
        super().__init__(optimizer, mode=mode, **options)  # type: ignore[arg-type]
        self.metric = metric

    def state_dict(self) -> dict[str, Any]:
        """Torch's, without the metric's name: that is the config's."""
        return {key: value for key, value in super().state_dict().items() if key != "metric"}


def step_with_metric(schedule: ReduceLROnPlateau, figures: Mapping[str, float]) -> None:
    """Step it after an evaluation.

    Args:
        figures: loss and metrics, equal on all ranks, so that every rank has the same learning rate.

    Raises:
        ConfigError: the evaluation has no such metric.
    """
    metric = getattr(schedule, "metric", "loss")
    if metric not in figures:
        near = nearest(metric, figures)
        raise ConfigError(
            f"schedule: the evaluation has no metric {metric!r}, but {', '.join(figures)}",
            hint=f"did you mean {near!r}?" if near else None,
        )
    schedule.step(figures[metric])


def make_schedule(
    target: Callable[..., Any], args: Mapping[str, Any], optimizer: Optimizer, total_steps: int
) -> Any:
    """Call one of these, or a class of torch.optim.lr_scheduler, with total_steps where it takes it.

    Raises ConfigError for a schedule that wants something else at each step.
    """
    schedule_args = dict(args)
    if "total_steps" in inspect.signature(target).parameters:
        schedule_args.setdefault("total_steps", total_steps)
    schedule = target(optimizer, **schedule_args)
    if isinstance(schedule, ReduceLROnPlateau):
        if not isinstance(schedule, Plateau) and schedule.mode == "max":
            raise ConfigError(
                "schedule: ReduceLROnPlateau with mode='max' would follow the loss",
                hint="schedule: {target: plateau, args: {metric: accuracy, mode: max}}",
            )
        return schedule
    required = [
        parameter.name
        for parameter in inspect.signature(schedule.step).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if required:
        raise ConfigError(
            f"schedule: {type(schedule).__name__} wants {', '.join(required)} at every step",
            cause="schedules are stepped once per optimizer step, by its number alone",
            hint="use dist_train.trainer.schedules:cosine, linear, constant or Plateau",
        )
    return schedule


def _progress(step: int, warmup_steps: int, total_steps: int) -> float:
    return min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
