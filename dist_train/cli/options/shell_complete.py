"""Shell completion of runs, configs, folders and files, from the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Runs in ./runs, and @last; folders if none matches."""
    from click.shell_completion import CompletionItem

    found = [name for name in ("@last", *_run_names()) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="dir")]


def configs_and_runs(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """YAML files here, and runs; files if none matches."""
    from click.shell_completion import CompletionItem

    files = sorted(path.name for path in Path().iterdir() if path.suffix in (".yaml", ".yml"))
    found = [name for name in (*files, *_run_names()) if name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Folders, completed by the shell."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def html_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Files, completed by the shell."""
    return files(incomplete)


def files(incomplete: str) -> list[CompletionItem[str]]:
    """Files, completed by the shell."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def _run_names() -> list[str]:
    from dist_train.cli.run.find_run import all_runs

    try:
        return [run.path.name for run in all_runs()]
    except OSError:  # no permission: completion prints no errors
        return []
