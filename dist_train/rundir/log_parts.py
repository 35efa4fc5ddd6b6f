"""The files of a rank's log: `rank-<r>.log`, and of a long log its further parts `rank-<r>.<n>.log`."""

from __future__ import annotations

import re
from pathlib import Path

DEFAULT_LIMIT_BYTES = 4 << 30
_NAME = re.compile(r"rank-(\d+)(?:\.(\d+))?\.log")


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
