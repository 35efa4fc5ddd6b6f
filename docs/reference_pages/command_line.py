"""reference/command-line.md: every verb and option, from click."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dist_train.cli.main import GROUPS, cli

HEAD = """\
# Command line

The text of each `--help`. Choices, groups of options and their defaults come from the launchers and
strategies that are installed, so that those of your own appear in yours.

Data goes to stdout, messages to stderr. Every verb that reads a run has `--json`: one object with
`schema_version`, to which keys are only ever added. `RUN` is a name, a directory, or `@last`.
[](../exit-codes.md)
"""
_WIDTH = 100


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="dist-train")
    parts = [HEAD]
    for title, verbs in GROUPS.items():
        parts.append(f"## {title}\n")
        for verb in verbs:
            command = cli.get_command(context, verb)
            assert command is not None
            parts += _help(command, f"dist-train {verb}", context)
    return "\n".join(parts)


def _help(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    """The verb and, for a group, the verbs within it."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=_WIDTH)
    yield f"### {path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _help(inner, f"{path} {name}", context)
