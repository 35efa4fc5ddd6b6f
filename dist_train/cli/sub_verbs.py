"""A verb with verbs of its own (`checkpoint list`): a wrong one is answered with the nearest."""

from __future__ import annotations

import difflib
from typing import Any

import click

from dist_train.cli.verb import Verb


class SubVerbs(Verb, click.Group):
    """As the top level: unknown words name the nearest known one."""

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        super().__init__(name, **{"subcommand_metavar": "VERB [WORDS]...", **settings})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence: click cuts it to the line."""
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Verbs"):
            formatter.write_dl([(name, one.get_short_help_str(limit=500)) for name, one in known if one])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest named."""
        if (
            not ctx.resilient_parsing
            and args
            and not args[0].startswith("-")
            and self.get_command(ctx, args[0]) is None
        ):
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}."
            raise click.UsageError(f"{ctx.info_name} has no {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)
