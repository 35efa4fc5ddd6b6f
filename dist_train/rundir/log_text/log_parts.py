"""The files of a log: `NAME.log` (`rank-<r>.log`), and of a long log its further parts `NAME.<n>.log`."""

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


def part_path(folder: Path, name: str, part: int) -> Path:
    """Where a part of a log is; the first is 0."""
    return folder / (f"{name}.{part}.log" if part else f"{name}.log")


def newest_part(folder: Path, name: str) -> int:
    """The number of the newest part that is there; 0 where there is none."""
    found = (path.name[len(name) + 1 :].removesuffix(".log") for path in folder.glob(f"{name}.*.log"))
    return max((int(number) for number in found if number.isdecimal()), default=0)


def find_parts(folder: Path) -> dict[int, list[int]]:
    """Find the logs of an attempt: rank -> its parts that are there, both ascending."""
    found: dict[int, list[int]] = {}
    for path in folder.glob("rank-*.log"):
        if (name := _NAME.fullmatch(path.name)) is not None:
            found.setdefault(int(name[1]), []).append(int(name[2] or 0))
    return {rank: sorted(found[rank]) for rank in sorted(found)}
