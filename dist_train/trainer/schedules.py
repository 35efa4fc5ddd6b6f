"""Learning-rate schedules in optimizer steps: factors of the optimizer's own rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dist_train.errors import ConfigError


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


def make_schedule(
    target: Callable[..., Any], args: Mapping[str, Any], optimizer: Optimizer, total_steps: int
) -> Any:
    """Call one of these, or a class of torch.optim.lr_scheduler, with total_steps where it takes it.

    Raises ConfigError for a schedule that wants a metric at each step.
    """
    schedule_args = dict(args)
    if "total_steps" in inspect.signature(target).parameters:
        schedule_args.setdefault("total_steps", total_steps)
    schedule = target(optimizer, **schedule_args)
    required = [
        parameter.name
        for parameter in inspect.signature(schedule.step).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if required:
        raise ConfigError(
            f"schedule: {type(schedule).__name__} wants {', '.join(required)} at every step",
            cause="schedules are stepped once per optimizer step, by its number alone",
            mend="use dist_train.trainer.schedules:cosine, linear or constant",
        )
    return schedule


def _progress(step: int, warmup_steps: int, total_steps: int) -> float:
    return min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
