"""Ranks as text: `rank 3`, `ranks 0-2,5`."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_INTERVALS = 8


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0-2,5` as Slurm and taskset write lists; of very many only the first are named."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    intervals: list[list[int]] = []
    for rank in ordered:
        if intervals and rank == intervals[-1][1] + 1:
            intervals[-1][1] = rank
        else:
            intervals.append([rank, rank])
    named = ",".join(f"{a}-{b}" if a != b else str(a) for a, b in intervals[:_MOST_INTERVALS])
    return f"ranks {named}" + (f",… ({len(ordered)} in all)" if len(intervals) > _MOST_INTERVALS else "")
