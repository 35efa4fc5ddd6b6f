"""`dist-train env`: the rank that this process would be, and the variables that decide it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import number, render_pairs
from dist_train.config.secret_names import is_secret_name
from dist_train.env import DROPPED_FOR_WORKERS, INIT_METHOD, TORCHRUN_NAMES, RankInfo
from dist_train.errors import ConfigError, ExitCode

_FACTS = (
    "rank",
    "local_rank",
    "node_rank",
    "world_size",
    "local_world_size",
    "num_nodes",
    "master_addr",
    "master_port",
    "source",
)
# The prefixes of all variables by which launchers set ranks.
_PREFIXES = ("DIST_TRAIN_", "TORCHELASTIC_", "MPI_LOCAL", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_")


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train env --explain",
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=n1 MASTER_PORT=29500 dist-train env",
    ),
)
@click.option(
    "--explain", is_flag=True, help="What was detected, from which variables, what was ignored and why."
)
@json_option
def env(explain: bool, as_json: bool) -> int:
    """Show what this process's environment says of its rank."""
    environ = dict(os.environ)
    try:
        info = RankInfo.from_env(environ)
    except ConfigError:
        # The hints of these errors name this command: print the variables before the error.
        if explain:
            _print_seen(environ, as_json)
        raise
    if as_json:
        print_json({**_facts(info), "init_method": _init_method(environ), **_explained(info, environ)})
        return int(ExitCode.OK)
    click.echo(render_pairs([(name, number(value)) for name, value in _facts(info).items()]))
    if explain:
        click.echo(_explanation(info, environ))
    return int(ExitCode.OK)


def seen(environ: Mapping[str, str]) -> dict[str, str]:
    """Every variable on ranks with its value; secrets without."""
    prefixes = (*_PREFIXES, *_SLURM, *DROPPED_FOR_WORKERS)
    names = sorted(name for name in environ if name in TORCHRUN_NAMES or name.startswith(prefixes))
    return {name: "…" if is_secret_name(name) else environ[name] for name in names}


def _facts(info: RankInfo) -> dict[str, Any]:
    whole = asdict(info)
    return {name: whole[name] for name in _FACTS}


def _init_method(environ: Mapping[str, str]) -> str:
    return environ.get(INIT_METHOD) or "env://"


def _explained(info: RankInfo, environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "used": {name: environ[name] for name in info.used if name in environ},
        "ignored": [
            {"name": name, "value": environ.get(name), "reason": reason} for name, reason in info.ignored
        ],
        "seen": seen(environ),
    }


def _explanation(info: RankInfo, environ: Mapping[str, str]) -> str:
    used = [f"  {name}={environ[name]}" for name in info.used if name in environ]
    ignored = [f"  {name}={environ.get(name)}: {reason}" for name, reason in info.ignored]
    explained = {*info.used, *(name for name, _ in info.ignored), "MASTER_ADDR", "MASTER_PORT", INIT_METHOD}
    rest = [f"  {name}={value}" for name, value in seen(environ).items() if name not in explained]
    origin = f"{INIT_METHOD}" if environ.get(INIT_METHOD) else "the default"
    lines = [
        "",
        f"detected: {info.source}",
        f"init method: {_init_method(environ)} ({origin})",
        *(
            f"{name}: {environ[name] if name in environ else _derived(value)}"
            for name, value in (("MASTER_ADDR", info.master_addr), ("MASTER_PORT", info.master_port))
        ),
        *_section("used", used or ["  nothing: one process"]),
        *_section("ignored", ignored),
        *_section("also set, and not needed for the facts above", rest),
    ]
    return "\n".join(lines)


def _derived(value: object) -> str:
    return "not set" if value is None else f"not set; {value} follows from the rest"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"{title}:", *lines] if lines else []


def _print_seen(environ: Mapping[str, str], as_json: bool) -> None:
    found = seen(environ)
    if as_json:
        print_json({"seen": found})
    else:
        click.echo("\n".join(["seen:", *(f"  {name}={value}" for name, value in found.items())]))


COMMAND = env
