"""What each rank's clock has counted, by part, over all attempts; lost steps are still in their parts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dist_train.rundir import RunDir
from dist_train.rundir.times.account_time import name_parts
from dist_train.rundir.times.clock_file import CLOCK_FILE, read_clock_file

Seconds = dict[str, float]


def read_rank_times(run: RunDir, is_script: bool) -> Mapping[int, Seconds]:
    """Seconds by part of each rank that has a clock file, in order of rank.

    Raises:
        OSError: a file is there and cannot be read.
    """
    found: dict[int, Seconds] = {}
    for path in sorted(run.attempts.glob(f"*/{CLOCK_FILE.format(rank='*')}")):
        rank = re.fullmatch(CLOCK_FILE.format(rank=r"(\d+)"), path.name)
        reading = None if rank is None else read_clock_file(path)
        if rank is None or reading is None:
            continue
        seconds = found.setdefault(int(rank[1]), {})
        for part, counted in name_parts(reading, is_script).items():
            seconds[part] = seconds.get(part, 0.0) + counted
    return dict(sorted(found.items()))
