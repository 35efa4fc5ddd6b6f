"""Options of the verbs other than `launch`: both spellings, and no last-one-wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dist_train.cli.arguments import normalize
from dist_train.cli.candidates import runs
from dist_train.cli.live import mode
from dist_train.cli.values import OneOf
from dist_train.errors import UsageError

_F = TypeVar("_F", bound=Callable[..., Any])

# `--exit_code` is `--exit-code`.
SPELLINGS: dict[str, Any] = {"token_normalize_func": normalize}


def once(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """An option with a value; given twice with different values it is exit 2."""
    return click.option(*names, multiple=True, callback=_only_one, **settings)


def run_argument(function: _F) -> _F:
    """RUN: a name, a directory or a handle; the newest run by default."""
    return click.argument("run", default="@last", metavar="[RUN]", shell_complete=runs)(function)


def json_option(function: _F) -> _F:
    """--json of every read verb."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object.")(function)


def progress_option(function: _F) -> _F:
    """--progress of what follows a job."""
    return once("--progress", type=OneOf(mode.CHOICES), help=mode.HELP)(function)


def _only_one(context: click.Context, option: click.Parameter, given: tuple[Any, ...]) -> Any:
    if len(set(given)) > 1:
        flag = "--" + str(option.name).replace("_", "-")
        raise UsageError(f"{flag} is given twice: {given[0]} and {given[-1]}", mend="give it once")
    return given[0] if given else None
