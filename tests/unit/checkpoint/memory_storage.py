"""A third party's storage: checkpoints in the memory of this process, found by `memory://<name>` URLs.

It works as one in a bucket would: a commit puts one reference to finished files if there is none yet,
as a conditional put of a manifest does; nothing is ever renamed file by file.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.checkpoint import CheckpointStorage
from dist_train.checkpoint.format.byte_stream import Write

Bucket = dict[str, dict[str, bytes]]
# URL -> name -> file -> bytes; records are the files of "".
BUCKETS: dict[str, Bucket] = {}
_LOCK = threading.Lock()


def missing(key: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)


class MemoryStream(io.BytesIO):
    @property
    def size(self) -> int:
        return len(self.getbuffer())


class MemoryStorage(CheckpointStorage):
    name = "memory"

    def _bucket(self) -> Bucket:
        return BUCKETS.get(self.location, {})

    def _bytes(self, key: str) -> bytes:
        folder, _, file = key.rpartition("/")
        try:
            return self._bucket()[folder][file]
        except KeyError:
            raise missing(self.locate(key)) from None

    def names(self) -> list[str]:
        bucket = self._bucket()
        return [name for name in (*bucket, *bucket.get("", ())) if name and "/" not in name]

    def files(self, name: str) -> set[str]:
        if name not in self._bucket():
            raise missing(self.locate(name))
        return set(self._bucket()[name])

    def exists(self, key: str) -> bool:
        folder, _, file = key.rpartition("/")
        return key in self._bucket() or file in self._bucket().get(folder, {})

    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        return self._bytes(key)[start:][:count]

    def open(self, key: str) -> MemoryStream:
        return MemoryStream(self._bytes(key))

    def prepare(self) -> None:
        BUCKETS.setdefault(self.location, {"": {}})

    def create_staging(self, staging: str) -> None:
        self._bucket()[staging] = {}

    @contextmanager
    def new_file(self, key: str) -> Iterator[Write]:
        folder, _, file = key.rpartition("/")
        content = bytearray()
        yield content.extend
        self._bucket()[folder][file] = bytes(content)

    def seal(self, staging: str) -> None: ...

    def sync(self) -> None: ...

    def commit(self, staging: str, name: str) -> None:
        with _LOCK:
            if name in self._bucket():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.locate(name))
            self._bucket()[name] = self._bucket().pop(staging)

    def replace_record(self, record: str, payload: bytes, temporary: str) -> None:
        self._bucket()[""][record] = payload

    def quarantine(self, name: str) -> str:
        number = 1
        while (target := f"quarantine/{name}-{number}") in self._bucket():
            number += 1
        self._bucket()[target] = self._bucket().pop(name)
        return target

    def quarantined(self) -> list[str]:
        return [name for name in self._bucket() if name.startswith("quarantine/")]

    def retire(self, name: str, temporary: str) -> None:
        self._bucket().pop(name)

    def remove(self, name: str) -> None:
        self._bucket().pop(name, None)


STORAGE = MemoryStorage
