"""What an option may be: what is said of a wrong value names what would be right."""

from __future__ import annotations

import difflib
from typing import Any

import click


class OneOf(click.Choice):  # type: ignore[type-arg]  # generic from click 8.2 on
    """One of some words; a misspelt one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does it."""
        words = [str(choice) for choice in self.choices]
        if value in words:
            return value
        near = difflib.get_close_matches(str(value), words, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return self.fail(f"{value!r} is none of {', '.join(words)}.{hint}", param, ctx)


class Count(click.ParamType):  # type: ignore[type-arg]
    """A whole number that is not too small."""

    name = "N"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Text -> number."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        if number < self.least:
            self.fail(f"{number} is too small: it must be at least {self.least}.", param, ctx)
        return number
