"""Find the commands in documents and in --help texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

# A line of a code block with such a beginning is a command; others are output, Python, YAML.
_PROGRAMS = (
    "dist-train",
    "make",
    "pip",
    "python",
    "git",
    "cd",
    "echo",
    "sbatch",
    "srun",
    "kubectl",
    "docker",
)
_ASSIGNMENT = r"(?:[A-Z_]+=\S+ )"
_COMMAND = re.compile(rf"{_ASSIGNMENT}*(?:{'|'.join(map(re.escape, _PROGRAMS))})(?= |$)")
_INLINE = re.compile(rf"`({_ASSIGNMENT}*dist-train [^`]+)`")


@dataclass(frozen=True)
class Written:
    """A command and its location."""

    where: str
    command: str

    def __str__(self) -> str:
        return f"{self.where}: {self.command}"


def of_markdown(name: str, text: str) -> Iterator[Written]:
    """Commands in code blocks (indented or fenced), and `dist-train …` within a sentence.

    `dist-train launch …` in a block stands for the launch above it, with further words.
    """
    launched = ""
    for number, line, in_code in _lines(text):
        where = f"{name}:{number}"
        if not in_code:
            launched = ""
            for found in _INLINE.findall(line):
                yield Written(where, found.replace("\\|", "|"))
        elif _COMMAND.match(line):
            if line.startswith("dist-train launch"):
                line = line.replace("dist-train launch …", launched)
                launched = re.split(r"\s+[#>|]|\s+--(?:dry-run|detach)", line)[0]
            yield Written(where, line)


def of_help(name: str, command: click.Command) -> Iterator[Written]:
    """The lines below `Examples:`, and any other line of the help that is a command."""
    context = click.Context(command, info_name=name)
    among_examples = False
    for line in re.sub(r" \\\n +", " ", command.get_help(context)).splitlines():
        if line and not line.startswith(" "):
            among_examples = line == "Examples:"
        elif line.strip() and (among_examples or line.strip().startswith("dist-train ")):
            yield Written(f"{name} --help", line.strip())
    for inner, nested in sorted(getattr(command, "commands", {}).items()):
        yield from of_help(f"{name} {inner}", nested)


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """(number, line, whether it is code): code without indentation, and one line where `\\` continues it."""
    fenced = False
    pending: tuple[int, str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        in_code = fenced or line.startswith("    ")
        bare = line.strip() if in_code else line
        if pending is not None:
            number, bare = pending[0], f"{pending[1]} {bare}"
            pending = None
        if in_code and bare.endswith("\\"):
            pending = (number, bare[:-1].rstrip())
            continue
        yield number, bare, in_code
