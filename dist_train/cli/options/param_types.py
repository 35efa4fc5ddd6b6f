"""Types of option values, whose errors name the values that are allowed."""

from __future__ import annotations

from typing import Any

import click

from dist_train.jobs.device_names import why_no_device
from dist_train.near_names import nearest
from dist_train.profiling.profiled_steps import parse_ranks, parse_steps
from dist_train.rundir.format_amounts import parse_file_size, parse_size
from dist_train.rundir.log_text.log_parts import parse_log_limit

# As in dist_train.config.launch_section, which this module does not load.
MOST_NODES = 65_536
MOST_PROCESSES_PER_NODE = 1_024


class OneOf(click.Choice):  # type: ignore[type-arg]  # generic from click 8.2 on
    """One of several names; the error for a misspelt one has the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it."""
        words = [str(choice) for choice in self.choices]
        if value in words:
            return value
        near = nearest(str(value), words)
        hint = f" Did you mean {near!r}?" if near else ""
        return self.fail(f"{value!r} is none of {', '.join(words)}.{hint}", param, ctx)


class DeviceName(OneOf):
    """A device; for one that dist-train does not know, or knows by another name, the error says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it."""
        why = why_no_device(str(value))
        return (
            super().convert(value, param, ctx) if why is None else self.fail(f"{value!r}: {why}.", param, ctx)
        )


class Count(click.ParamType):  # type: ignore[type-arg]
    """A whole number within bounds."""

    name = "N"

    def __init__(self, least: int, most: int = 2**31 - 1) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text -> number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is not a whole number.", param, ctx)
        if number < self.least:
            self.fail(f"{number} is too small: it must be at least {self.least}.", param, ctx)
        if number > self.most:
            self.fail(f"{number} is too large: it must be at most {self.most}.", param, ctx)
        return number


class MemorySize(click.ParamType):  # type: ignore[type-arg]
    """Memory of a GPU: `80GiB`, as bytes; `80G` is the same."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text -> bytes."""
        if isinstance(value, int):
            return value
        try:
            found = parse_size(str(value))
        except ValueError as error:
            self.fail(f"{str(value)[:40]!r}: {error}.", param, ctx)
        if found < 1:
            self.fail(f"{str(value)[:40]!r} is no memory.", param, ctx)
        return found


class LogLimit(click.ParamType):  # type: ignore[type-arg]
    """The size of a rank's log: `512M`, as bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text -> bytes."""
        if isinstance(value, int):
            return value
        try:
            return parse_log_limit(str(value))
        except ValueError as error:
            self.fail(f"{str(value)[:40]!r}: {error}.", param, ctx)


class FileSize(click.ParamType):  # type: ignore[type-arg]
    """The size of a file: `5GB` or `5GiB`, as bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text -> bytes."""
        if isinstance(value, int):
            return value
        try:
            return parse_file_size(str(value))
        except ValueError as error:
            self.fail(f"{str(value)[:40]!r}: {error}.", param, ctx)


class Steps(click.ParamType):  # type: ignore[type-arg]
    """Optimizer steps to profile: `11:15`, or none."""

    name = "STEPS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked."""
        try:
            parse_steps(str(value))
        except ValueError as error:
            self.fail(f"{str(value)[:40]!r}: {error}.", param, ctx)
        return str(value)


class Ranks(click.ParamType):  # type: ignore[type-arg]
    """Ranks: `all`, or `0,3`."""

    name = "RANKS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked."""
        try:
            parse_ranks(str(value))
        except ValueError as error:
            self.fail(f"{str(value)[:40]!r}: {error}.", param, ctx)
        return str(value)
