"""The components of a config, made once, in the order that the bits depend on.

A run goes one way: config -> `make_components` -> `build` (build.py) -> `Trainer.fit` (trainer.py). Nothing
here knows a device, a strategy or a checkpoint. `predict` takes the model alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from dist_train.config.component import Component
from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError
from dist_train.strategies.blocks.activation_checkpointing import checkpoint_activations
from dist_train.trainer.callback import Callback
from dist_train.trainer.component_factory import make, target_of
from dist_train.trainer.rng_isolation import seed_for_model
from dist_train.trainer.schedules import make_schedule
from dist_train.trainer.task import LossFunction, Metric, SupervisedTask, Task


@dataclass(frozen=True)
class Components:
    """What a config names, as objects; optimizer and schedule as calls, since they need the wrapped model.

    Args:
        train: the training data set.
        evaluation: the evaluation's, None without one.
        collate_fn: list of samples -> batch, of both data sets; None: torch's.
        model: on the CPU, not wrapped.
        optimizer: called with the wrapped model's parameters.
        schedule: called with the optimizer and the run's steps; gives None without a schedule.
        callbacks: in the order of their calls.
    """

    train: Any
    evaluation: Any | None
    collate_fn: Callable[[list[Any]], Any] | None
    task: Task
    model: nn.Module
    optimizer: Callable[[Any], Optimizer]
    schedule: Callable[[Optimizer, int], Any | None]
    callbacks: tuple[Callback, ...]


def make_components(config: RunConfig) -> Components:
    """Make everything that the config names; each begins with the same RNG state on all ranks.

    Raises:
        ConfigError: a component does not fit; the message names its key.
    """
    seed_for_model(config.seed)
    train = make(config.data.train, "data")
    part = config.data.evaluation
    evaluation = None if part is None else make(part, "data")
    collate_fn = make_collate(config)
    task = make_task(config)
    callbacks = tuple(make(one, "callbacks") for one in config.trainer.callbacks)
    # Again: a data set that draws must not change the parameters.
    seed_for_model(config.seed)
    model = make_model(config)
    return Components(
        train=train,
        evaluation=evaluation,
        collate_fn=collate_fn,
        task=task,
        model=model,
        optimizer=lambda parameters: cast(Optimizer, make(config.optimizer, "optimizer", parameters)),
        schedule=partial(_schedule, config.schedule),
        callbacks=callbacks,
    )


def _schedule(component: Component | None, optimizer: Optimizer, total_steps: int) -> Any | None:
    if component is None:
        return None
    return make_schedule(target_of(component, "schedule"), component.args, optimizer, total_steps)


def make_model(config: RunConfig) -> nn.Module:
    """The model, on the CPU, its parameters drawn from the current RNG state."""
    model = make(config.model, "model")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: {config.model.target} made a {type(model).__name__}, not an nn.Module")
    return model


def recompute_activations(model: nn.Module, config: RunConfig) -> None:
    """Let the modules that `trainer.activation_checkpointing` names compute their activations again.

    Raises:
        ConfigError: a name that fits no module of the model.
    """
    chosen = config.trainer.activation_checkpointing
    if chosen is not None:
        option = "trainer.activation_checkpointing.modules"
        checkpoint_activations(model, chosen.modules, option=option)


def make_collate(config: RunConfig) -> Callable[[list[Any]], Any] | None:
    """The function that makes a batch of samples; None: torch's."""
    component = config.data.collate_fn
    return None if component is None else _function(component, "collate_fn")


def make_task(config: RunConfig) -> Task:
    """The task, or the supervised one that `loss` and `metrics` stand for."""
    if config.task is not None:
        task = make(config.task, "task")
        if not isinstance(task, Task):
            raise ConfigError(
                f"task: {config.task.target} made a {type(task).__name__} without `units` and `loss`",
                hint="give it units(batch) -> int and loss(model, batch) -> LossOutput",
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
            hint="remove reduction",
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
        name = component.target.replace(":", ".").rpartition(".")[2]
        if name in metrics or name == "loss":
            raise ConfigError(f"metrics: two are called {name!r}", hint="name each one once")
        metrics[name] = _function(component, "metrics")
    return metrics


def _function(component: Component, kind: str) -> Callable[..., Any]:
    """A function with the component's args bound, or a callable object that its class makes with them."""
    target = target_of(component, kind)
    if not inspect.isclass(target):
        return partial(target, **component.args) if component.args else target
    made = make(component, kind)
    if not callable(made):
        raise ConfigError(
            f"{kind}: {component.target} made a {type(made).__name__}, which cannot be called",
            hint="name a function, or a class with __call__",
        )
    return cast(Callable[..., Any], made)
