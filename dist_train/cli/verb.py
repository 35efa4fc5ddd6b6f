"""A verb whose --help ends with examples: each can be copied and run."""

from __future__ import annotations

import click


class Verb(click.Command):
    """As click's command; its epilog holds one example a line."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines as they are: click would wrap them, and a wrapped command cannot be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def examples(*lines: str) -> str:
    """The epilog of a Verb; what follows two spaces and `#` explains a line."""
    told = [line.split("  # ", 1) for line in lines]
    width = max((len(command) for command, *why in told if why), default=0)
    return "\n".join(f"{one[0]:<{width}}  # {one[1]}" if len(one) > 1 else one[0] for one in told)
