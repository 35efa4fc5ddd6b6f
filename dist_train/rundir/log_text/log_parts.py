"""The files of a rank's log: `rank-<r>.log`, and of a long log its further parts `rank-<r>.<n>.log`."""

from __future__ import annotations

import re
from pathlib import Path

from dist_train.rundir.format_amounts import parse_size

DEFAULT_LIMIT_BYTES = 4 << 30
_LEAST_LIMIT_BYTES = 1 << 20
_NAME = re.compile(r"rank-(\d+)(?:\.(\d+))?\.log")


def parse_log_limit(text: str) -> int:
    """Read a log's limit: `512M`, `4G`, in bytes; raises ValueError for no size, and for less than 1M."""
    limit = parse_size(text)
    if limit < _LEAST_LIMIT_BYTES:
        raise ValueError("a log needs at least 1M")
    return limit


def part_path(folder: Path, rank: int, part: int) -> Path:
    """Where a part of a rank's log is; the first is 0."""
    return folder / (f"rank-{rank}.{part}.log" if part else f"rank-{rank}.log")


def find_parts(folder: Path) -> dict[int, list[int]]:
    """Find the logs of an attempt: rank -> its parts that are there, both ascending."""
    found: dict[int, list[int]] = {}
    for path in folder.glob("rank-*.log"):
        if (name := _NAME.fullmatch(path.name)) is not None:
            found.setdefault(int(name[1]), []).append(int(name[2] or 0))
    return {rank: sorted(found[rank]) for rank in sorted(found)}
