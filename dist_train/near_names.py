"""The known name that a misspelt one probably meant, for the hint of an error."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice most similar to `word`, ignoring case; None if none is as similar as `cutoff` (0 to 1)."""
    import difflib  # only after a mistake: `dist-train --help` must start quickly

    by_fold = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_fold, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None
