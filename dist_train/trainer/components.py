"""From a config's components to objects: what they are called with, and errors that name the key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from torch import nn

from dist_train.config.component import Component
from dist_train.config.components import resolve
from dist_train.config.schema import RunConfig
from dist_train.config.shortcuts import SHORTCUTS
from dist_train.errors import ConfigError
from dist_train.trainer.task import LossFunction, Metric, SupervisedTask, Task


def target_of(component: Component, kind: str) -> Callable[..., Any]:
    """What a component names, imported. Raises ConfigError for what cannot be called."""
    target = resolve(component.target, SHORTCUTS[kind])
    if not callable(target):
        raise ConfigError(f"{kind}: {component.target} is {target!r}, which cannot be called")
    return target


def make(component: Component, kind: str, *positional: Any) -> Any:
    """Call the component with its args.

    Raises:
        ConfigError: the args do not fit its signature. What it raises itself goes through untouched.
    """
    target = target_of(component, kind)
    check_call(target, component, kind, positional)
    return target(*positional, **component.args)


def check_call(
    target: Callable[..., Any], component: Component, kind: str, positional: tuple[Any, ...]
) -> None:
    """Raise ConfigError where these arguments do not fit the target's signature."""
    try:
        inspect.signature(target).bind(*positional, **component.args)
    except ValueError:
        return  # built-ins may have no signature
    except TypeError as error:
        raise ConfigError(
            f"{kind}: {component.target} cannot be called with the args {sorted(component.args)}",
            cause=str(error),
            mend=f"its signature is {inspect.signature(target)}",
        ) from None


def make_model(config: RunConfig) -> nn.Module:
    """The model, on the CPU, drawn from the current random streams."""
    model = make(config.model, "model")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: {config.model.target} made a {type(model).__name__}, not an nn.Module")
    return model


def make_task(config: RunConfig) -> Task:
    """The task, or the supervised one that `loss` and `metrics` stand for."""
    if config.task is not None:
        task = make(config.task, "task")
        if not isinstance(task, Task):
            raise ConfigError(
                f"task: {config.task.target} made a {type(task).__name__} without `units` and `loss`",
                mend="give it units(batch) -> int and loss(model, batch) -> LossOutput",
            )
        return task
    assert config.loss is not None  # the schema wants one of the two
    return SupervisedTask(_loss(config.loss), _metrics(config))


def _loss(component: Component) -> LossFunction:
    """A function (called with reduction="sum") or a class of loss modules (made with it)."""
    if "reduction" in component.args:
        raise ConfigError(
            f"loss: reduction={component.args['reduction']!r} cannot be chosen",
            cause="the trainer sums over samples and divides by the samples of the whole step",
            mend="remove reduction",
        )
    target = target_of(component, "loss")
    if not inspect.isclass(target):
        return cast(LossFunction, partial(target, **component.args))
    summed = Component(target=component.target, args={**component.args, "reduction": "sum"})
    module = make(summed, "loss")
    return lambda outputs, targets, reduction: module(outputs, targets)


def _metrics(config: RunConfig) -> Mapping[str, Metric]:
    metrics: dict[str, Metric] = {}
    for component in config.metrics:
        target = target_of(component, "metrics")
        name = component.target.replace(":", ".").rpartition(".")[2]
        if name in metrics or name == "loss":
            raise ConfigError(f"metrics: two are called {name!r}", mend="name each one once")
        metrics[name] = make(component, "metrics") if inspect.isclass(target) else _partial(target, component)
    return metrics


def _partial(target: Callable[..., Any], component: Component) -> Metric:
    return cast(Metric, partial(target, **component.args) if component.args else target)
