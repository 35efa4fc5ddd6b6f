"""Errors of checkpoints, and how names that do not match are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.near_names import nearest

SHOWN = 5


class DamagedCheckpoint(CheckpointError):
    """The bytes are not those that were written; `file` and `block` name the place, if known."""

    def __init__(self, what: str, *, file: str | None = None, block: int | None = None) -> None:
        super().__init__(what)
        self.file = file
        self.block = block


class UnsupportedCheckpoint(CheckpointError):
    """A whole checkpoint in a format that this version cannot read."""


class ReplicaMismatch(CheckpointWriteError):
    """Ranks that must hold equal state do not; nothing was committed."""

    def __init__(
        self, what: str, odd_ranks: Collection[int] = (), *, cause: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, cause=cause, hint=hint)
        self.odd_ranks = tuple(odd_ranks)


def with_nearest(names: Iterable[str], candidates: Collection[str]) -> str:
    """List names with the nearest candidates: `'a.weigth' (nearest: 'a.weight'), 'b.bias' and 7 more`."""
    wanted = sorted(names)
    parts = []
    for name in wanted[:SHOWN]:
        near = nearest(name, candidates)
        parts.append(f"'{name}'" + (f" (nearest: '{near}')" if near else ""))
    more = len(wanted) - SHOWN
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
