"""--show-ranks: whose stdout the terminal shows, each of them a rank of the job."""

from __future__ import annotations

import re

from dist_train.errors import UsageError


def shown_ranks(text: str, world_size: int) -> str:
    """Check the option's text.

    Raises:
        UsageError: it is neither `all` nor a list of ranks, or the job has no such rank.
    """
    if text == "all":
        return text
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--show-ranks {text!r} is neither `all` nor a list of ranks such as 0,3")
    missing = [rank for rank in text.split(",") if int(rank) >= world_size]
    if missing:
        raise UsageError(
            f"--show-ranks {text}: there is no rank {', '.join(missing)}",
            cause=f"this job's ranks are {_ranks(world_size)}",
        )
    return text


def shown_ranks_at(text: str, world_size: int) -> str:
    """Of a list that another size was started with, the ranks that are there; rank 0 if none is."""
    if text == "all":
        return text
    return ",".join(rank for rank in text.split(",") if int(rank) < world_size) or "0"


def _ranks(world_size: int) -> str:
    return "0 alone" if world_size == 1 else f"0 to {world_size - 1}"
