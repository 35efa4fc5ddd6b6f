"""Where the time of a run went, from its directory."""

from __future__ import annotations

import time

from dist_train.rundir.directory import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.times.account_time import account_time
from dist_train.rundir.times.attempt_history import attempt_history
from dist_train.rundir.times.clock_file import clock_path, read_clock_file
from dist_train.rundir.times.time_parts import RunTime


def read_times(run: RunDir, is_script: bool) -> RunTime | None:
    """The parts of every attempt that has begun; None before the first, and for a run of an older version.

    Args:
        is_script: the target is a user's own script, not a config.

    Raises:
        OSError: a file is there and cannot be read.
    """
    history = attempt_history(read_events(run))
    if not history:
        return None
    found = {attempt.attempt: read_clock_file(clock_path(run, attempt.attempt)) for attempt in history}
    readings = {number: reading for number, reading in found.items() if reading is not None}
    return account_time(history, readings, is_script, time.time())
