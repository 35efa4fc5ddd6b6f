"""Collect everything that is wrong with a config, so that one command reports all of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dist_train.errors import ConfigError
from dist_train.near_names import nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# A path in a config: ("data", "train", "args") or ("metrics", 0, "target").
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        text: what, with the dotted path and the value.
        where: `file:line`, the override or the flag that set the value; empty if there is none.
        hint: what to do.
        path: the path in the config.
        unreadable: the value could not be read, so that further problems at this path would mislead.
    """

    text: str
    where: str = ""
    hint: str | None = None
    path: KeyPath | None = None
    unreadable: bool = True

    @property
    def what(self) -> str:
        """The text, prefixed by where the value was set."""
        return f"{self.where}: {self.text}" if self.where else self.text


def raise_problems(problems: Sequence[Problem], subject: str) -> None:
    """Raise one ConfigError that lists all `problems` of `subject`; do nothing if there is none.

    Raises:
        ConfigError: when there is at least one problem.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise ConfigError(problems[0].what, hint=problems[0].hint)
    lines = [f"{subject}: {len(problems)} problems"]
    for problem in problems:
        lines.append(f"  - {problem.what}")
        if problem.hint:
            lines.append(f"    hint: {problem.hint}")
    raise ConfigError("\n".join(lines))


def what_is_wrong(error: ErrorDetails) -> str:
    """What a model refuses: the words of its own check where that failed, else pydantic's."""
    return str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]


def dotted(path: Iterable[str | int]) -> str:
    """("metrics", 0, "target") -> "metrics.0.target"."""
    return ".".join(str(part) for part in path)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint: the nearest choice, else all choices (the first 12)."""
    names = sorted(choices)
    close = nearest(word, names)
    if close is not None:
        return f"did you mean `{close}`?"
    if not names:
        return "there is none to choose from"
    more = f", … ({len(names)} in all)" if len(names) > 12 else ""
    return f"choose one of: {', '.join(names[:12])}{more}"


def shown(value: Any, limit: int = 60) -> str:
    """Format a value as one short line for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
