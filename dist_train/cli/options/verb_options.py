"""Options that several verbs have: both spellings, and an error where one is given two values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from dist_train.cli.live import display_mode
from dist_train.cli.options.param_types import MOST_NODES, MOST_PROCESSES_PER_NODE, Count, OneOf
from dist_train.cli.options.shell_complete import runs
from dist_train.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])


def normalize(token: str) -> str:
    """Take `--run_dir` as `--run-dir`; click passes an option's name without its dashes."""
    return token.replace("_", "-")


SPELLINGS: dict[str, Any] = {"token_normalize_func": normalize}


def once(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """An option with one value; two different values are a UsageError."""
    return click.option(*names, multiple=True, callback=_only_one, **settings)


def run_argument(function: _F) -> _F:
    """RUN: a name, a directory or a handle; the newest run by default."""
    return click.argument("run", default="@last", metavar="[RUN]", shell_complete=runs)(function)


def json_option(function: _F) -> _F:
    """--json of every verb that only reads."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(function)


def size_options(function: _F) -> _F:
    """--nodes and --gpus-per-node of verbs that look at a config before it is launched."""
    nodes = once(
        "-N", "--nodes", "--nnodes", type=Count(1, MOST_NODES), help="Nodes.  [default: the config's]"
    )
    procs = once(
        "--gpus-per-node",
        "--nproc-per-node",
        type=Count(1, MOST_PROCESSES_PER_NODE),
        metavar="G",
        help="Processes per node.  [default: the config's, or as launch chooses]",
    )
    return nodes(procs(function))


def size_flags(nodes: int | None, gpus_per_node: int | None) -> dict[str, tuple[Any, str]]:
    """Return `size_options` as flags of `load_config`: they win over the config's launch section."""
    given = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    return {
        f"launch.{name}": (value, f"--{name.replace('_', '-')} {value}")
        for name, value in given.items()
        if value is not None
    }


def progress_option(function: _F) -> _F:
    """--progress of verbs that follow a job."""
    return once("--progress", type=OneOf(display_mode.CHOICES), help=display_mode.HELP)(function)


def only_value(name: str, values: Sequence[Any]) -> Any:
    """The one value of an option; None where it was not given. Raise UsageError for two different ones."""
    if len(set(map(str, values))) > 1:
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag} is given twice: {values[0]} and {values[-1]}", hint="give it once")
    return values[0] if values else None


def _only_one(context: click.Context, option: click.Parameter, values: tuple[Any, ...]) -> Any:
    return only_value(str(option.name), values)
