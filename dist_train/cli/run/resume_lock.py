"""One `resume` of a run at a time: two would start it twice before either has the lease."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.cli.run.find_run import OpenedRun
from dist_train.errors import ConfigError


@contextmanager
def resume_lock(opened: OpenedRun) -> Iterator[None]:
    """Hold the run's lock, which the kernel releases with this process; raise ConfigError if it is taken."""
    opened.run.create()
    descriptor = os.open(opened.run.control / "resume.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, opened)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, opened: OpenedRun) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"another `dist-train resume {opened.short_name}` is running",
            hint=f"dist-train cancel {opened.short_name}",
        ) from None
    except OSError:
        # A file system without locks: the lease still ends the second agent.
        return
