"""Write, rename and remove files so that the result survives a crash or a power loss."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Write = Callable[[memoryview], None]
FLUSH_EVERY = 1 << 30
# Begin to write back so much at a time, while more is written.
WRITE_BACK_EVERY = 32 << 20


@contextmanager
def durable_file(path: Path, mode: int = 0o666, *, exclusive: bool = True) -> Iterator[Write]:
    """Create `path`; on leaving it is fsynced and closed, and both may raise OSError.

    Every FLUSH_EVERY bytes are flushed on the way: one fsync of all of a large file could take longer than
    any time-out, with no sign of progress. A full disk or quota may be reported only at fsync or close, so
    neither is ever skipped.

    Args:
        path: the new file.
        mode: its permissions, before the umask.
        exclusive: refuse a file that is there already; False truncates it.
    """
    how = os.O_EXCL if exclusive else os.O_TRUNC
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | os.O_CLOEXEC, mode)
    unflushed = written = begun = 0

    def write(piece: memoryview) -> None:
        nonlocal unflushed, written, begun
        _write_all(descriptor, piece)
        unflushed += len(piece)
        written += len(piece)
        if written - begun >= WRITE_BACK_EVERY:
            _begin_write_back(descriptor, begun, written - begun)
            begun = written
        if unflushed >= FLUSH_EVERY:
            os.fdatasync(descriptor)
            unflushed = 0

    try:
        yield write
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    os.close(descriptor)


def _begin_write_back(descriptor: int, start: int, count: int) -> None:
    """Have the kernel begin to write these bytes before fsync waits for them; nothing dirty is dropped."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # advice, and no promise hangs on it: fsync reports what goes wrong
            os.posix_fadvise(descriptor, start, count, os.POSIX_FADV_DONTNEED)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(descriptor, piece) :]


def replace_file(path: Path, temporary: Path, payload: bytes) -> None:
    """Put these bytes at `path` atomically and durably, by way of `temporary` in the same directory."""
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    with durable_file(temporary) as write:
        write(memoryview(payload))
    os.rename(temporary, path)
    sync_directory(path.parent)


def unfinished_file(path: Path, pid: int) -> Path:
    """Name the file that process `pid` writes before it gets its name by `link_new`."""
    return path.with_name(f".{path.name}.{pid}.tmp")


def link_new(temporary: Path, path: Path) -> None:
    """Give a finished file its name, durably; FileExistsError where the name is taken already."""
    try:
        # Unlike a rename, a link never replaces a file that another process has put there meanwhile.
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
    """Create `path` and its missing parents, each name durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory or a file; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the file system of `path`."""
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize
