"""What is wrong with a config, gathered so that one run of the command tells all of it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.errors import ConfigError

# A place in a config: ("data", "train", "args") or ("metrics", 0, "target").
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        text: what, with the dotted path and the value.
        where: `file:line`, the override or the flag that it came by; empty where there is none.
        mend: what to do.
        path: the place in the config.
        spoils: the value there could not be read, so what else is said of it would mislead.
    """

    text: str
    where: str = ""
    mend: str | None = None
    path: Path | None = None
    spoils: bool = True

    @property
    def what(self) -> str:
        """The text after the place it is about."""
        return f"{self.where}: {self.text}" if self.where else self.text


def raise_problems(problems: Sequence[Problem], subject: str) -> None:
    """Raise one ConfigError that lists all `problems` of `subject`; nothing when there is none.

    Raises:
        ConfigError: when there is at least one problem.
    """
    if not problems:
        return
    if len(problems) == 1:
        raise ConfigError(problems[0].what, mend=problems[0].mend)
    lines = [f"{subject}: {len(problems)} problems"]
    for problem in problems:
        lines.append(f"  - {problem.what}")
        if problem.mend:
            lines.append(f"    mend: {problem.mend}")
    raise ConfigError("\n".join(lines))


def dotted(path: Iterable[str | int]) -> str:
    """("metrics", 0, "target") -> "metrics.0.target"."""
    return ".".join(str(part) for part in path)


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that looks most like `word`, or None."""
    by_fold = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_fold, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The nearest choice, else all of them (the first 12)."""
    names = sorted(choices)
    close = nearest(word, names)
    if close is not None:
        return f"did you mean `{close}`?"
    if not names:
        return "there is none to choose from"
    more = f", … ({len(names)} in all)" if len(names) > 12 else ""
    return f"choose one of: {', '.join(names[:12])}{more}"


def shown(value: Any, limit: int = 60) -> str:
    """A value as one short line for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
