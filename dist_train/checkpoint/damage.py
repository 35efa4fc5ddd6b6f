"""What can be wrong with a checkpoint, and how names that do not match are reported."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from dist_train.errors import CheckpointError, CheckpointWriteError

SHOWN = 5


class Damaged(CheckpointError):
    """The bytes are not those that were written; `file` and `block` say where, if known."""

    def __init__(self, what: str, *, file: str | None = None, block: int | None = None) -> None:
        super().__init__(what)
        self.file = file
        self.block = block


class Unsupported(CheckpointError):
    """A whole checkpoint in a form that this version cannot read."""


class ReplicaMismatch(CheckpointWriteError):
    """Ranks that must hold equal state do not; nothing was committed."""

    def __init__(
        self, what: str, odd_ranks: Collection[int] = (), *, cause: str | None = None, mend: str | None = None
    ) -> None:
        super().__init__(what, cause=cause, mend=mend)
        self.odd_ranks = tuple(odd_ranks)


def with_nearest(names: Iterable[str], candidates: Collection[str]) -> str:
    """`'a.weigth' (nearest: 'a.weight'), 'b.bias' and 7 more`."""
    wanted = sorted(names)
    parts = []
    for name in wanted[:SHOWN]:
        near = difflib.get_close_matches(name, candidates, n=1)
        parts.append(f"'{name}'" + (f" (nearest: '{near[0]}')" if near else ""))
    more = len(wanted) - SHOWN
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
