"""A verb whose --help ends with examples: each can be copied and run."""

from __future__ import annotations

import re

import click

# Of a line of --help, less its indentation: what a terminal of 80 columns shows unbroken.
_WIDTH = 78


class Verb(click.Command):
    """As click's command; its epilog holds one example a line."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lines as they are: click would wrap them, and a wrapped command cannot be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def examples(*lines: str) -> str:
    """The epilog of a Verb; what follows two spaces and `#` explains a line; a long one goes on below."""
    told = [line.split("  # ", 1) for line in lines]
    width = max((len(command) for command, *why in told if why), default=0)
    return "\n".join(f"{one[0]:<{width}}  # {one[1]}" if len(one) > 1 else _continued(one[0]) for one in told)


def _continued(command: str) -> str:
    """Broken before an option, so that its value stays beside it."""
    lines = [""]
    for part in re.split(r" (?=-|dist-train )", command):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDTH - 3:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return command if len(command) <= _WIDTH else " \\\n".join(lines)
