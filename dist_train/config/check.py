"""Everything about a config that can be checked without importing its components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dist_train import registry
from dist_train.config.components import check_arguments, check_target
from dist_train.config.problems import Problem, did_you_mean, raise_problems
from dist_train.config.shortcuts import SHORTCUTS
from dist_train.errors import ConfigError

if TYPE_CHECKING:
    from dist_train.config.component import Component
    from dist_train.config.schema import RunConfig


def check_config(config: RunConfig, folder: Path, origins: Mapping[str, str] | None = None) -> None:
    """Check every component's target and arguments, names of adapters, and rules across sections.

    Args:
        config: a config that loaded.
        folder: the config file's folder, from which its components may be imported.
        origins: `Resolved.origins`, to name lines.

    Raises:
        ConfigError: everything that is wrong, at once.
    """
    problems = [
        *(
            problem
            for path, kind, part in components(config)
            for problem in _component(path, kind, part, folder)
        ),
        *_adapters(config),
        *_rules(config),
    ]
    told = origins or {}
    placed = [(told.get(".".join(map(str, problem.path or ())), ""), problem) for problem in problems]
    raise_problems(
        [Problem(one.text, "" if where == "default" else where, one.mend) for where, one in placed],
        "the config",
    )


def components(config: RunConfig) -> Iterator[tuple[str, str, Component]]:
    """(dotted path, kind of its short names, component) of every component that is set."""
    places = [
        ("model", "model", config.model),
        ("task", "task", config.task),
        ("data.train", "data", config.data.train),
        ("data.evaluation", "data", config.data.evaluation),
        ("loss", "loss", config.loss),
        *((f"metrics.{i}", "metrics", metric) for i, metric in enumerate(config.metrics)),
        ("optimizer", "optimizer", config.optimizer),
        ("schedule", "schedule", config.schedule),
    ]
    for path, kind, part in places:
        if part is not None:
            yield path, kind, part


def _component(path: str, kind: str, part: Component, folder: Path) -> list[Problem]:
    shortcuts = SHORTCUTS[kind]
    try:
        check_target(part.target, [folder], shortcuts)
    except ConfigError as error:
        return [_told(f"{path}.target", error)]
    try:
        if part.args:
            check_arguments(part.target, part.args, [folder], shortcuts)
    except ConfigError as error:
        return [_told(f"{path}.args", error)]
    return []


def _told(path: str, error: ConfigError) -> Problem:
    cause = f" ({error.cause})" if error.cause else ""
    return Problem(f"`{path}`: {error.what}{cause}", mend=error.mend, path=tuple(path.split(".")))


def _adapters(config: RunConfig) -> Iterator[Problem]:
    asked = [
        ("strategy.name", "strategies", config.strategy.name),
        ("launch.launcher", "launchers", config.launch.launcher),
        *(("logging.sinks", "sinks", name) for name in config.logging.sinks),
    ]
    for path, kind, name in asked:
        known = registry.names(kind)
        if name not in known:
            text = f"`{path}`: none of the {kind} is called {name!r}"
            yield Problem(text, mend=did_you_mean(name, known), path=tuple(path.split(".")))
            continue
        for package, how in registry.missing(kind, name).items():
            text = f"`{path}`: {name} needs the package {package}, which is not installed"
            yield Problem(text, mend=how, path=tuple(path.split(".")))


def _rules(config: RunConfig) -> Iterator[Problem]:
    best = config.checkpoint.keep_best
    if best is not None and (config.data.evaluation is None or config.trainer.evaluate_every_epochs is None):
        text = "`checkpoint.keep_best` compares evaluations, and there are none while it trains"
        mend = "set data.evaluation and trainer.evaluate_every_epochs, or remove keep_best"
        yield Problem(text, mend=mend, path=("checkpoint", "keep_best", "metric"))
    # A metric is called what its target is called; a task names its own when it runs.
    measured = {"loss", *(one.target.replace(":", ".").rpartition(".")[2] for one in config.metrics)}
    if best is not None and config.task is None and best.metric not in measured:
        text = f"`checkpoint.keep_best.metric`: no metric is called {best.metric!r}"
        yield Problem(
            text, mend=did_you_mean(best.metric, measured), path=("checkpoint", "keep_best", "metric")
        )
    if config.metrics and config.data.evaluation is None:
        text = "`metrics` are measured in the evaluation, and `data.evaluation` is not set"
        mend = "set data.evaluation, or remove metrics"
        yield Problem(text, mend=mend, path=("metrics", "0", "target"))
