"""A verb whose --help ends with examples that can be copied and run."""

from __future__ import annotations

import re

import click

# Width of a line of --help without its indentation, on a terminal of 80 columns.
_WIDTH = 78


class Verb(click.Command):
    """A click command whose epilog has one example per line."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines unwrapped: a wrapped command cannot be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def examples(*lines: str) -> str:
    """The epilog of a Verb. Two spaces and `#` start an explanation; long commands are continued below."""
    pairs = [line.split("  # ", 1) for line in lines]
    width = max((len(command) for command, *why in pairs if why), default=0)
    return "\n".join(
        f"{one[0]:<{width}}  # {one[1]}" if len(one) > 1 else _continued(one[0]) for one in pairs
    )


def _continued(command: str) -> str:
    """Break a long command before an option, so that its value stays on the same line."""
    lines = [""]
    for part in re.split(r" (?=-|dist-train )", command):
        if lines[-1] and len(lines[-1]) + len(part) > _WIDTH - 3:
            lines.append("   ")
        lines[-1] += f" {part}" if lines[-1] else part
    return command if len(command) <= _WIDTH else " \\\n".join(lines)
