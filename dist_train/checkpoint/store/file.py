"""Checkpoints in a directory, local or on a file server: the storage of paths and `file://` URLs."""

from __future__ import annotations

import errno
import io
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dist_train.checkpoint.format.byte_stream import ReadAt, Write
from dist_train.checkpoint.format.layout import QUARANTINE
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.writer_lock import LOCK, hold_writer_lock
from dist_train.rundir import durable_files

_URL = "file://"


class FileStorage(CheckpointStorage):
    """A directory; the commit is the rename of a directory whose files and names are fsynced.

    Args:
        location: the directory, as a path or a `file://` URL.
    """

    name = "file"

    def __init__(self, location: str | Path) -> None:
        self.directory = Path(str(location).removeprefix(_URL))
        super().__init__(str(self.directory))

    def locate(self, key: str) -> str:
        return str(self.directory / key)

    def path_of(self, key: str) -> Path:
        return self.directory / key

    def names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.directory) if name != LOCK]
        except FileNotFoundError:
            return []

    def files(self, name: str) -> set[str]:
        return set(os.listdir(self.directory / name))

    def exists(self, key: str) -> bool:
        return (self.directory / key).exists()

    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        with open(self.directory / key, "rb") as file:
            file.seek(start)
            return file.read(count)

    def open(self, key: str) -> FileStream:
        return FileStream(self.directory / key)

    def drop_cached(self, name: str) -> None:
        # Only pages that are written back are dropped, and these are: every file was fsynced. On a file
        # server the client's copy goes; tmpfs has no other one.
        for file in self.files(name):
            descriptor = os.open(self.directory / name / file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def prepare(self) -> None:
        durable_files.make_directory(self.directory)

    def hold_writer(self, holder: str) -> str | None:
        return hold_writer_lock(self.directory, f"process {os.getpid()} on {platform.node()}, {holder}")

    def free_bytes(self) -> int:
        return durable_files.free_bytes(self.directory)

    def create_staging(self, staging: str) -> None:
        os.mkdir(self.directory / staging)

    @contextmanager
    def new_file(self, key: str) -> Iterator[Write]:
        path = self.directory / key
        try:
            with durable_files.durable_file(path) as write:
                yield write
        except OSError as error:
            # write, fsync and close know only a number of the file.
            if error.filename is None:
                error.filename = str(path)
            raise

    def seal(self, staging: str) -> None:
        durable_files.sync_directory(self.directory / staging)

    def commit(self, staging: str, name: str) -> None:
        target = self.directory / name
        try:
            os.rename(self.directory / staging, target)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            raise

    def sync(self) -> None:
        durable_files.sync_directory(self.directory)

    def replace_record(self, record: str, payload: bytes, temporary: str) -> None:
        durable_files.replace_file(self.directory / record, self.directory / temporary, payload)

    def quarantine(self, name: str) -> str:
        folder = self.directory / QUARANTINE
        durable_files.make_directory(folder)
        number = 1
        while (target := folder / f"{name}-{number}").exists():
            number += 1
        os.rename(self.directory / name, target)
        self.sync()
        durable_files.sync_directory(folder)
        return f"{QUARANTINE}/{target.name}"

    def quarantined(self) -> list[str]:
        try:
            found = [
                (entry.stat().st_ctime_ns, entry.name) for entry in os.scandir(self.directory / QUARANTINE)
            ]
        except FileNotFoundError:
            return []
        # A rename sets the change time.
        return [f"{QUARANTINE}/{name}" for _changed, name in sorted(found)]

    def retire(self, name: str, temporary: str) -> None:
        # Renamed first: a crash half way must not leave something that looks like a damaged checkpoint.
        self.remove(temporary)
        os.rename(self.directory / name, self.directory / temporary)
        self.sync()
        self.remove(temporary)

    def remove(self, name: str) -> None:
        durable_files.remove_tree(self.directory / name)


class FileStream(io.FileIO):
    """An open file without a buffer: its bytes go into the memory where they are wanted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self.fileno()).st_size

    @property
    def read_at(self) -> ReadAt | None:
        """Reads at any place, in any thread; None for a subclass that reads in a way of its own."""
        if type(self).readinto is not io.FileIO.readinto or not hasattr(os, "preadv"):
            return None
        return lambda view, start: os.preadv(self.fileno(), [view], start)


STORAGE = FileStorage
