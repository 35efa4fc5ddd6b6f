"""What a detached local run prints: logs/launcher.log and its further parts, within the limit of logs."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dist_train.rundir.log_text.bounded_log import BoundedLog

LAUNCHER = "launcher"
_READ_BYTES = 64 * 1024
_WAKE_S = 0.3  # with the log's own wait before it flushes this makes a second
_LAST_S = 5.0  # for a child that keeps the pipe open


@contextmanager
def output_within_limit(logs: Path, limit_bytes: int) -> Iterator[None]:
    """Write stdout and stderr of this process and its children into the launcher's log, within its limit.

    Where stdout is not that log, as in a command that a person has typed, nothing is changed.

    Args:
        logs: the folder of the run's logs.
        limit_bytes: of all parts together.
    """
    if not _is_stdout(logs / f"{LAUNCHER}.log"):
        yield
        return
    log = BoundedLog(logs, LAUNCHER, limit_bytes)
    kept = {target: os.dup(target) for target in (1, 2)}
    reading, writing = os.pipe()
    _replace({1: writing, 2: writing})
    os.close(writing)
    ended = threading.Event()
    thread = threading.Thread(target=_log, args=(log, reading, ended), name="launcher-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _replace(kept)  # what comes from now on goes to the file that this process was started with
        for descriptor in kept.values():
            os.close(descriptor)
        thread.join(_LAST_S)
        ended.set()
        thread.join()
        os.close(reading)
        log.close()


def _is_stdout(path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(1), path.stat())
    return False


def _replace(streams: dict[int, int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for target, descriptor in streams.items():
        os.dup2(descriptor, target)


def _log(log: BoundedLog, reading: int, ended: threading.Event) -> None:
    """Log what comes until nobody has the other end open, or `ended` is set."""
    while not ended.is_set():
        if select.select([reading], [], [], _WAKE_S)[0]:
            data = os.read(reading, _READ_BYTES)
            if not data:
                return
            log.write(data)
        log.tick(time.monotonic())
