"""`dist-train config show|schema|check`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_train import registry
from dist_train.cli.launch.device_choice import job_size
from dist_train.cli.launch.launcher_options import launcher_section, validated_options
from dist_train.cli.launch.strategy_check import ConfigSource, StrategyFit, check_strategy
from dist_train.cli.options.shell_complete import configs_and_runs
from dist_train.cli.options.verb import examples
from dist_train.cli.options.verb_group import SubVerbs
from dist_train.cli.options.verb_options import SPELLINGS, json_option, size_flags, size_options
from dist_train.cli.output.json_output import print_json
from dist_train.cli.run.find_config import find_config, import_folder
from dist_train.jobs.launcher import load_launcher
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

if TYPE_CHECKING:
    from dist_train.config import Resolved
    from dist_train.config.launch_section import LaunchConfig


@click.group(
    cls=SubVerbs,
    epilog=examples(
        "dist-train config check train.yaml",
        "dist-train config check train.yaml --nodes 2 --gpus-per-node 8",
        "dist-train config show train.yaml seed=1  # every value and its origin",
        "dist-train config show digits-1  # of a run",
        "dist-train config schema > train.schema.json  # for editors",
    ),
)
def config() -> None:
    """Show, check and describe configs."""


@config.command(context_settings=SPELLINGS)
@click.argument("source", metavar="CONFIG|RUN", shell_complete=configs_and_runs)
@click.argument("overrides", nargs=-1, metavar="[a.b=c]...")
@json_option
def show(source: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Print every value, and where it came from."""
    from dist_train.config import load_config
    from dist_train.config import show as lines_of

    path = find_config(source)
    resolved = load_config(path, overrides)
    resolved = replace(resolved, origins={**resolved.origins, **_launch_origins(path, resolved)})
    if as_json:
        values = resolved.config.model_dump(mode="json")
        print_json({"source": resolved.source, "config": values, "origins": resolved.origins})
    else:
        click.echo("\n".join(lines_of(resolved)))
    return 0


def _launch_origins(path: Path, resolved: Resolved) -> dict[str, str]:
    """Of a run's own config: where its launch took each value from that is read from it now."""
    run = RunDir(path.absolute().parent)
    if path.name != run.config.name or not run.is_run:
        return {}
    try:
        recorded = (read_json(run.config_origins) or {}).get("origins")
    except (OSError, ValueError):
        return {}
    from_file = {key for key, origin in resolved.origins.items() if origin.startswith(f"{resolved.source}:")}
    known = recorded if isinstance(recorded, dict) else {}
    return {key: str(origin) for key, origin in known.items() if key in from_file}


@config.command(context_settings=SPELLINGS)
@json_option
def schema(as_json: bool) -> int:
    """Print the JSON Schema of a config file (for editors); --json puts it into an object."""
    from dist_train.config import json_schema

    if as_json:
        print_json({"schema": json_schema()})
    else:
        click.echo(json.dumps(json_schema(), indent=2))
    return 0


@config.command(context_settings=SPELLINGS)
@click.argument("source", metavar="CONFIG", shell_complete=configs_and_runs)
@click.argument("overrides", nargs=-1, metavar="[a.b=c]...")
@size_options
@json_option
def check(
    source: str, overrides: tuple[str, ...], nodes: int | None, gpus_per_node: int | None, as_json: bool
) -> int:
    """Look for mistakes as `launch` does, importing and starting nothing of yours.

    A strategy with options, or with a mesh that the ranks may not fit, is asked in a process of its own. One
    that cuts layers builds the model there, and runs its loss and backward pass on a sample, without values.
    """
    from dist_train.config import check_config, dump_config, load_config
    from dist_train.config.static_check import components

    path = find_config(source)
    resolved = load_config(path, overrides, size_flags(nodes, gpus_per_node))
    launch, strategy = resolved.config.launch, resolved.config.strategy
    check_config(resolved.config, path.absolute().parent, resolved.origins)
    _check_launch(launch, resolved.origins)
    device, procs = job_size(launch)
    world_size = launch.nodes * procs
    source_of_model = ConfigSource(dump_config(resolved.config), str(import_folder(path)), forward=True)
    accumulate = resolved.config.trainer.accumulate
    fit = check_strategy(strategy, accumulate, world_size, device, resolved.origins, source_of_model)
    if fit.unchecked is not None:
        click.echo(f"[dist-train] {fit.unchecked}", err=True)
    targets = {where: part.target for where, _, part in components(resolved.config)}
    record: dict[str, Any] = {
        "ok": True,
        "source": resolved.source,
        "values": len(resolved.origins),
        "components": targets,
        "strategy": strategy.name,
        "launcher": launch.launcher,
        "world_size": world_size,
        "mesh": fit.mesh,
    }
    if as_json:
        print_json(record)
    else:
        click.echo(
            f"ok: {source}: {record['values']} values; {len(targets)} components with their arguments "
            f"({', '.join(targets)}); strategy {strategy.name}{_mesh(fit)}; "
            f"launcher {launch.launcher}, {launch.nodes} node(s) x {procs}"
        )
    return 0


def _mesh(fit: StrategyFit) -> str:
    return "" if fit.mesh is None else f" ({' x '.join(f'{name} {size}' for name, size in fit.mesh)})"


def _check_launch(launch: LaunchConfig, origins: Mapping[str, str]) -> None:
    """The launcher's own section, by its own options model, and the time limit."""
    from dist_train.jobs.duration import seconds

    if launch.time is not None:
        seconds(launch.time)
    for name in registry.names("launchers"):
        if section := launcher_section(launch, name):
            validated_options(load_launcher(name), section, origins)


COMMAND = config
