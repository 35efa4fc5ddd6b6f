"""The log of one rank, within its limit: logs/attempt-<k>/rank-<r>.log and its further parts."""

from __future__ import annotations

from pathlib import Path

from dist_train.agent.workers.rank_output import RankOutput
from dist_train.rundir.log_text.bounded_log import BoundedLog
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES


class RankLog(BoundedLog):
    """A BoundedLog of what a rank prints.

    Args:
        folder: that of the attempt's logs.
        limit_bytes: of all parts together.
        output: prints what the user must know.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        output: RankOutput | None = None,
    ) -> None:
        notes = {} if output is None else {"note": output.note, "note_once": output.note_once}
        super().__init__(folder, f"rank-{rank}", limit_bytes, f"rank {rank}", **notes)
