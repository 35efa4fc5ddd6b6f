"""The few operations on files that a commit is made of; each is durable when it returns."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Write = Callable[[memoryview], None]


@contextmanager
def durable_file(path: Path) -> Iterator[Write]:
    """Create `path` exclusively; on leaving it is fsynced and closed, and both may raise OSError.

    A full disk or quota may be told only at fsync or close, so neither is ever skipped.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield lambda piece: _write_all(descriptor, piece)
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    os.close(descriptor)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(descriptor, piece) :]


def write_durable(path: Path, payload: bytes) -> None:
    """Create `path` with these bytes, fsynced."""
    with durable_file(path) as write:
        write(memoryview(payload))


def replace_durable(path: Path, temporary: Path, payload: bytes) -> None:
    """Put these bytes at `path` atomically, by way of `temporary` in the same directory."""
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    write_durable(temporary, payload)
    os.rename(temporary, path)
    sync_directory(path.parent)


def give_name(temporary: Path, path: Path) -> None:
    """Give a finished file its name, durably; FileExistsError where something has it already."""
    try:
        # Unlike a rename it never replaces what somebody else has put there meanwhile.
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links.
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make `path` and its missing parents, each name durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory or file of ours; one that is gone already is no error."""
    if path.is_dir() and not path.is_symlink():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the file system of `path`."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize
