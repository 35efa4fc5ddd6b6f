"""What a shell may offer for a word that is being typed: runs, configs; from this folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of the runs in ./runs and @last; where none fits, folders."""
    from click.shell_completion import CompletionItem

    found = [name for name in ("@last", *_run_names()) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="dir")]


def configs_and_runs(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """The YAML files here and the runs; where none fits, files."""
    from click.shell_completion import CompletionItem

    files = sorted(path.name for path in Path().iterdir() if path.suffix in (".yaml", ".yml"))
    found = [name for name in (*files, *_run_names()) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Whatever folders the shell finds."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def files(incomplete: str) -> list[CompletionItem[str]]:
    """Whatever files the shell finds."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def _run_names() -> list[str]:
    from dist_train.cli.runs import all_runs

    try:
        return [run.path.name for run in all_runs()]
    except OSError:  # a folder that may not be read: half a line is no place for errors
        return []
