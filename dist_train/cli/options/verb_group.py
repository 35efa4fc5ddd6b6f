"""A verb with sub-verbs (`checkpoint list`)."""

from __future__ import annotations

from typing import Any

import click

from dist_train.cli.options.verb import Verb
from dist_train.near_names import nearest


class SubVerbs(Verb, click.Group):
    """Errors for an unknown sub-verb name the nearest known one, as at the top level."""

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        super().__init__(name, **{"subcommand_metavar": "VERB [WORDS]...", **settings})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List each with its whole first sentence: click cuts it to the line."""
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Verbs"):
            formatter.write_dl([(name, one.get_short_help_str(limit=500)) for name, one in known if one])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with the nearest sub-verb in the error."""
        if (
            not ctx.resilient_parsing
            and args
            and not args[0].startswith("-")
            and self.get_command(ctx, args[0]) is None
        ):
            known = self.list_commands(ctx)
            near = nearest(args[0], known)
            hint = f"Did you mean {near!r}?" if near else f"There are: {', '.join(known)}."
            raise click.UsageError(f"{ctx.info_name} has no {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)
