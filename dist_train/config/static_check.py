"""Check a config as far as possible without importing its components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_train import registry
from dist_train.config.adapter_options import check_options
from dist_train.config.bucket_url import BUCKET_SCHEMES, parse_bucket_url, scheme_of
from dist_train.config.components import check_arguments, check_target
from dist_train.config.problems import Problem, did_you_mean, dotted, raise_problems
from dist_train.config.shortcuts import short_names
from dist_train.errors import ConfigError
from dist_train.rundir.remote_checkpoints import RUN_NAME

if TYPE_CHECKING:
    from dist_train.config.component import Component
    from dist_train.config.schema import RunConfig

_STORAGES = "checkpoint_storages"
# Of the other kinds, functions get further arguments from the trainer.
_CALLED_WITH_ARGS_ALONE = frozenset({"model", "task", "data", "callbacks"})
_PLATEAU = (
    "plateau",
    "dist_train.trainer.schedules:Plateau",
    "torch.optim.lr_scheduler:ReduceLROnPlateau",
)
_EARLY_STOPPING = ("early_stopping", "dist_train.trainer.callbacks.early_stopping:EarlyStopping")


def check_config(config: RunConfig, folder: Path, origins: Mapping[str, str] | None = None) -> None:
    """Check every component's target and arguments, names of adapters, and rules across sections.

    Args:
        config: a valid config.
        folder: the config file's folder, from which its components may be imported.
        origins: `Resolved.origins`, to name lines.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    problems = [
        *(
            problem
            for path, kind, part in components(config)
            for problem in _component(path, kind, part, folder)
        ),
        *_adapters(config),
        *_checkpoint_location(config),
        *_sink_options(config),
        *_rules(config),
    ]
    known = origins or {}
    placed = [(known.get(dotted(problem.path or ()), ""), problem) for problem in problems]
    raise_problems(
        [Problem(one.text, "" if where == "default" else where, one.hint) for where, one in placed],
        "the config",
    )


def components(config: RunConfig) -> Iterator[tuple[str, str, Component]]:
    """(dotted path, kind of its short names, component) of every component that is set."""
    places = [
        ("model", "model", config.model),
        ("task", "task", config.task),
        ("data.train", "data", config.data.train),
        ("data.evaluation", "data", config.data.evaluation),
        ("data.collate_fn", "collate_fn", config.data.collate_fn),
        ("loss", "loss", config.loss),
        *((f"metrics.{i}", "metrics", metric) for i, metric in enumerate(config.metrics)),
        ("optimizer", "optimizer", config.optimizer),
        ("schedule", "schedule", config.schedule),
        *((f"trainer.callbacks.{i}", "callbacks", one) for i, one in enumerate(config.trainer.callbacks)),
    ]
    for path, kind, part in places:
        if part is not None:
            yield path, kind, part


def _component(path: str, kind: str, part: Component, folder: Path) -> list[Problem]:
    shortcuts = short_names(kind)
    try:
        check_target(part.target, [folder], shortcuts)
    except ConfigError as error:
        return [_problem_at(f"{path}.target", error)]
    try:
        check_arguments(part.target, part.args, [folder], shortcuts, complete=kind in _CALLED_WITH_ARGS_ALONE)
    except ConfigError as error:
        return [_problem_at(f"{path}.args", error)]
    return []


def _problem_at(path: str, error: ConfigError) -> Problem:
    cause = f" ({error.cause})" if error.cause else ""
    return Problem(f"`{path}`: {error.what}{cause}", hint=error.hint, path=tuple(path.split(".")))


def _adapters(config: RunConfig) -> Iterator[Problem]:
    asked = [
        ("strategy.name", "strategies", config.strategy.name),
        ("launch.launcher", "launchers", config.launch.launcher),
        *((f"logging.sinks.{i}.name", "sinks", sink.name) for i, sink in enumerate(config.logging.sinks)),
    ]
    for path, kind, name in asked:
        known = registry.names(kind)
        if name not in known:
            text = f"`{path}`: none of the {kind} is called {name!r}"
            yield Problem(text, hint=did_you_mean(name, known), path=tuple(path.split(".")))
            continue
        for package, how in registry.missing(kind, name).items():
            text = f"`{path}`: {name} needs the package {package}, which is not installed"
            yield Problem(text, hint=how, path=tuple(path.split(".")))


def _checkpoint_location(config: RunConfig) -> Iterator[Problem]:
    url = config.checkpoint.directory
    if url is None:
        return
    place, scheme = ("checkpoint", "directory"), scheme_of(url)
    known = [name for name in registry.names(_STORAGES) if name != "file"]
    if scheme is None:
        text = f"`checkpoint.directory`: {url} is a path, and not a URL"
        hint = "drop it, and choose the run directory by --run-dir: checkpoints lie in it"
        yield Problem(text, hint=hint, path=place)
    elif scheme not in known:
        text = f"`checkpoint.directory`: no checkpoint storage is registered for {scheme}://"
        yield Problem(text, hint=did_you_mean(scheme, known), path=place)
    elif scheme in BUCKET_SCHEMES:
        try:
            parse_bucket_url(url.replace(RUN_NAME, "run"))
        except ConfigError as error:
            yield _problem_at("checkpoint.directory", error)
    for package, how in registry.missing(_STORAGES, scheme or "").items():
        text = f"`checkpoint.directory`: {scheme}:// needs the package {package}, which is not installed"
        yield Problem(text, hint=how, path=place)


def _sink_options(config: RunConfig) -> Iterator[Problem]:
    """Of sinks that are there; importing one loads neither torch nor its own library."""
    for index, sink in enumerate(config.logging.sinks):
        if sink.name not in registry.names("sinks"):
            continue
        try:
            check_options(f"the sink {sink.name}", registry.load("sinks", sink.name), sink.options)
        except ConfigError as error:
            yield _problem_at(f"logging.sinks.{index}.{'options' if sink.options else 'name'}", error)


def _rules(config: RunConfig) -> Iterator[Problem]:
    best = config.checkpoint.keep_best
    compared = [] if best is None else [("checkpoint.keep_best", "metric", best.metric)]
    compared += [
        (f"trainer.callbacks.{index}", "args.metric", one.args.get("metric", "loss"))
        for index, one in enumerate(config.trainer.callbacks)
        if one.target in _EARLY_STOPPING
    ]
    if config.schedule is not None and config.schedule.target in _PLATEAU:
        compared.append(("schedule", "args.metric", config.schedule.args.get("metric", "loss")))
    for path, key, metric in compared:
        yield from _compared_metric(config, path, key, metric)
    if config.metrics and config.data.evaluation is None:
        text = "`metrics` are measured in the evaluation, and `data.evaluation` is not set"
        hint = "set data.evaluation, or remove metrics"
        yield Problem(text, hint=hint, path=("metrics", "0", "target"))


def _compared_metric(config: RunConfig, path: str, key: str, metric: Any) -> Iterator[Problem]:
    """Of a section that compares a metric between evaluations."""
    where = tuple(f"{path}.{key}".split("."))
    if config.data.evaluation is None or config.trainer.evaluate_every_epochs is None:
        text = f"`{path}` compares evaluations, and there are none while it trains"
        hint = "set data.evaluation and trainer.evaluate_every_epochs, or remove it"
        yield Problem(text, hint=hint, path=where)
    # A metric has the name of its target; the metrics of a task are known only when it runs.
    measured = ["loss", *(one.target.replace(":", ".").rpartition(".")[2] for one in config.metrics)]
    if config.task is None and metric not in measured:
        text = f"`{path}.{key}`: no metric is called {metric!r}"
        yield Problem(text, hint=did_you_mean(str(metric), measured), path=where)
