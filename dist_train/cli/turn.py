"""One `resume` at a time: two would start the same run twice before either had a lease."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.cli.runs import OpenedRun
from dist_train.errors import ConfigError


@contextmanager
def own_turn(opened: OpenedRun) -> Iterator[None]:
    """Hold the run's lock; it goes with this process, however that ends. Raises ConfigError if it is held."""
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
            f"another `dist-train resume {opened.word}` is at work",
            mend=f"dist-train cancel {opened.word}",
        ) from None
    except OSError:
        # A file system without locks: the lease still ends the second of the two agents.
        return
