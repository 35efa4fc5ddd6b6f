"""The requests to one prefix of a bucket; what fails is an OSError that names the URL."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.store.object_store.request_errors import as_os_errors
from dist_train.config.bucket_url import BucketUrl

# A larger object is uploaded in parts of this size: S3 allows 10,000 of them, so 312 GiB, and R2 wants all of
# them equal. So many at once: that much more memory.
PART_BYTES = 32 << 20
PARTS_AT_ONCE = 4
_PIECE_BYTES = 8 << 20
_DELETES_AT_ONCE = 8
_AGAIN_S = (0.2, 1.0, 5.0)


@dataclass(frozen=True)
class ObjectFacts:
    """What a listing says of an object: its key below the prefix, its size, when it was written."""

    key: str
    size: int
    written: datetime


class Bucket:
    """One prefix of a bucket.

    Args:
        url: the bucket and the prefix.
        connect: makes the library's client for it; nothing is requested before the first call.
    """

    def __init__(self, url: BucketUrl, connect: Callable[[BucketUrl], Any]) -> None:
        self._url = url
        self._connect = connect

    @cached_property
    def _client(self) -> Any:
        return self._connect(self._url)

    def locate(self, key: str) -> str:
        """The URL of a key."""
        return f"{self._url}/{key}" if key else str(self._url)

    def get(self, key: str) -> bytes:
        """Read an object."""
        import obstore

        with self._named(key):
            return bytes(obstore.get(self._client, key).bytes())

    def begin_of(self, key: str, count: int) -> bytes:
        """Read the first bytes of an object, which may have fewer."""
        import obstore

        with self._named(key):
            return bytes(obstore.get(self._client, key, options={"range": (0, count)}).bytes())

    def get_range(self, key: str, start: int, count: int) -> memoryview:
        """Read bytes of an object that has them."""
        import obstore

        with self._named(key):
            return memoryview(obstore.get_range(self._client, key, start=start, length=count))

    def size(self, key: str) -> int:
        """Bytes of an object."""
        import obstore

        with self._named(key):
            return int(obstore.head(self._client, key)["size"])

    def exists(self, key: str) -> bool:
        """Whether there is an object of this key; asks for it, never a listing."""
        try:
            self.size(key)
        except FileNotFoundError:
            return False
        return True

    def put(self, key: str, content: bytes) -> None:
        """Write an object, whether it is there or not."""
        import obstore

        with self._named(key):
            obstore.put(self._client, key, content, use_multipart=False)

    def create(self, key: str, content: bytes) -> None:
        """Write an object that is not there, by a conditional request; else FileExistsError.

        The library does not repeat such a request when a connection is lost, as it may have been served:
        here it is repeated, and an object that then holds this content is ours.
        """
        lost = False
        for pause in (*_AGAIN_S, None):
            try:
                self._create(key, content)
                return
            except FileExistsError:
                if lost and self.get(key) == content:
                    return
                raise
            except OSError as error:
                if pause is None or error.errno != errno.EIO:
                    raise
                lost = True
                time.sleep(pause)

    def _create(self, key: str, content: bytes) -> None:
        import obstore

        with self._named(key):
            obstore.put(self._client, key, content, mode="create", use_multipart=False)

    @contextmanager
    def writer(self, key: str) -> Iterator[Write]:
        """Write an object of any size; it is there when the context ends without an error.

        After an error it is not: parts that were uploaded are left to the bucket's own rule.
        """
        import obstore

        with self._named(key):
            file = obstore.open_writer(
                self._client, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

        def write(view: memoryview) -> None:
            with self._named(key):
                for start in range(0, len(view), _PIECE_BYTES):
                    # A copy: the library keeps what it is given until it is sent, and the caller fills its
                    # memory again.
                    file.write(bytes(view[start : start + _PIECE_BYTES]))

        yield write
        with self._named(key):
            file.close()

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a missing one is no error."""
        names = list(keys)
        if len(names) == 1:
            self._delete_one(names[0])
        elif names:
            # One request each: not every store has S3's request for many.
            with ThreadPoolExecutor(_DELETES_AT_ONCE, "dist-train-delete") as pool:
                list(pool.map(self._delete_one, names))

    def _delete_one(self, key: str) -> None:
        import obstore

        for pause in (*_AGAIN_S, None):
            try:
                with self._named(key):
                    obstore.delete(self._client, key)
                return
            except FileNotFoundError:
                return
            except OSError as error:
                # Nor does the library repeat this one where a connection is lost.
                if pause is None or error.errno != errno.EIO:
                    raise
                time.sleep(pause)

    def below(self, folder: str) -> list[ObjectFacts]:
        """List the objects whose keys begin with `folder/`."""
        import obstore

        with self._named(folder):
            return [
                ObjectFacts(str(one["path"]), int(one["size"]), one["last_modified"])
                for chunk in obstore.list(self._client, f"{folder}/", chunk_size=1000)
                for one in chunk
            ]

    def names(self) -> list[str]:
        """List what lies directly below the prefix: objects, and the first parts of longer keys."""
        import obstore

        with self._named(""):
            found = obstore.list_with_delimiter(self._client)
        folders = [str(path).rstrip("/") for path in found["common_prefixes"]]
        return [*folders, *(str(one["path"]) for one in found["objects"])]

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        with as_os_errors(self.locate(key)):
            yield
