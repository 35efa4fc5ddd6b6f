"""One live writer per directory: a lock that the system releases when its process ends, however it ends.

Within one process it is the manager that saved last: an older one knows nothing of its checkpoints, and
would take them for those of a timeline that was given up.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from dist_train.errors import CheckpointWriteError

T = TypeVar("T")
logger = logging.getLogger(__name__)

LOCK = ".writer.lock"
# (process, directory) -> the open file: closing it would release the lock, and a forked child has none.
_held: dict[tuple[int, str], int] = {}

# (process, location) -> number of the manager that saved there last.
_saved_last: dict[tuple[int, str], int] = {}
# (process, location) -> number of the manager whose save is being written there in the background.
_writing: dict[tuple[int, str], int] = {}
_numbers = count()


class ProcessWriter:
    """One manager among those of this process that save in a location.

    Args:
        location: a path or URL.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._number = next(_numbers)
        self._has_saved = False

    def begin_save(self) -> None:
        """Become the one that saves here.

        Raises:
            CheckpointWriteError: this one has been, and a later one has saved since; or another one is still
                writing here: what it writes would be removed as a leftover.
        """
        key = self._key
        if _writing.get(key, self._number) != self._number:
            raise CheckpointWriteError(
                f"another CheckpointManager of this process is still writing in {self._location}",
                hint="call its wait() first; or save with one manager, or give each its own directory",
            )
        if self._has_saved and _saved_last.get(key, self._number) != self._number:
            raise CheckpointWriteError(
                f"another CheckpointManager of this process now saves in {self._location}",
                cause="each would take the other's checkpoints for those of a timeline that was given up",
                hint="save with one manager (keep_last, keep_best and every_steps go together), or give each "
                "its own directory",
            )
        self._has_saved = True
        _saved_last[key] = self._number

    def in_background(self, write: Callable[[], T]) -> Callable[[], T]:
        """Let no other manager of this process save here until the returned function, called once, ends.

        Args:
            write: writes a checkpoint; of any thread.
        """
        key = self._key
        _writing[key] = self._number

        def written() -> T:
            try:
                return write()
            finally:
                del _writing[key]

        return written

    @property
    def _key(self) -> tuple[int, str]:
        return os.getpid(), os.path.realpath(self._location)


def hold_writer_lock(directory: Path, holder: str) -> str | None:
    """Become the directory's writer until this process ends.

    A lock of POSIX, not flock: a forked loader worker that outlives its rank does not inherit it, and it
    holds between nodes on a file server.

    Args:
        directory: exists.
        holder: who this is, for the message of whoever comes second.

    Returns:
        None where this process holds it now; what the other one wrote where it is taken.
    """
    path = directory / LOCK
    key = (os.getpid(), os.path.realpath(path))
    if key in _held and _is_file(_held[key], path):
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        taken = error.errno in (errno.EACCES, errno.EAGAIN)
        other = os.pread(descriptor, 4096, 0).decode(errors="replace")
        os.close(descriptor)
        if taken:
            return other or "a process that left no name"
        logger.warning("%s has no file locks (%s): a second live writer is not found", directory, error)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, holder.encode(), 0)
    _held[key] = descriptor
    return None


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether the path still is the open file: the directory may have been removed and made again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
