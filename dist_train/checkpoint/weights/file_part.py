"""Read files that others wrote, or parts of them as files of their own."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from dist_train.checkpoint.store.file import FileStream
from dist_train.errors import CheckpointError


@contextmanager
def naming_file(path: object) -> Iterator[None]:
    """Raise CheckpointError, naming the file, where the system cannot read it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path} could not be read: {error.strerror or error}"
        ) from error


class _FilePart(io.RawIOBase):
    def __init__(self, path: Path, start: int, length: int) -> None:
        super().__init__()
        self._file = FileStream(path)
        self._start, self._length, self._at = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError(f"byte {base + offset} of a file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # a view is what is given
        view = memoryview(buffer).cast("B")[: max(0, self._length - self._at)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(view) or 0
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_part(path: Path, start: int, length: int) -> BinaryIO:
    """Open `length` bytes of a file, from byte `start` on, to read them."""
    return cast(BinaryIO, io.BufferedReader(_FilePart(path, start, length)))
