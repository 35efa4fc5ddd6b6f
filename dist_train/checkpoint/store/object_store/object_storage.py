"""Checkpoints in an object store: files under a name of their own, and one conditional put that commits them.

Below the URL lie

    data/<staging>.<random>/<file>      what a save uploads; no two saves write below one such prefix
    .<staging>                          a marker: below which prefix a save writes, or what is being removed
    <name>/manifest.json                the commit: the manifest, and where its files lie
    quarantine/<name>-<number>/manifest.json
    fence.json and .create-only         records

so that nothing that a reader may see is ever overwritten, and a checkpoint exists from the moment at which
the store has accepted `<name>/manifest.json`, put with the condition that there is none (If-None-Match). A
writer that was killed leaves its marker, by which the next attempt removes what it had uploaded.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.layout import MANIFEST, QUARANTINE
from dist_train.checkpoint.store.object_store.bucket import Bucket
from dist_train.checkpoint.store.object_store.object_stream import ObjectStream
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.config.bucket_url import BucketUrl, parse_bucket_url
from dist_train.errors import ConfigError

_DATA = "data"
# Written twice by the first writer, the second time to be refused; then it stays.
_CREATE_ONLY = ".create-only"
# More than the longest head: the manifest of many tensors takes megabytes.
_HEAD_BYTES = 512
_HEAD = re.compile(rb'\{"data":"(data/[A-Za-z0-9._-]+)","manifest":')
_QUARANTINED = re.compile(rf"{QUARANTINE}/(.+)-\d+")


@dataclass(frozen=True)
class Marker:
    """What a marker says.

    Args:
        folder: where the files lie.
        name: of the checkpoint that may point there; None before its commit began.
    """

    folder: str
    name: str | None = None

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps({"data": self.folder, "name": self.name}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Marker | None:
        """None for what is no marker: nothing may be removed by it."""
        try:
            found = json.loads(raw)
            folder, name = found["data"], found["name"]
        except (ValueError, TypeError, KeyError):
            return None
        return cls(folder, name) if re.fullmatch(r"data/[A-Za-z0-9._-]+", str(folder)) else None


class ObjectStorage(CheckpointStorage):
    """Checkpoints below one prefix of a bucket; a subclass says how the provider is reached.

    Args:
        location: the URL of the prefix.
    """

    outlives_run_directory = True

    def __init__(self, location: str) -> None:
        self._url = parse_bucket_url(location)
        super().__init__(str(self._url))
        self._bucket = Bucket(self._url, self.connect)
        # Name of a checkpoint -> where its files lie, as its manifest said when it was read last.
        self._folders: dict[str, str] = {}
        self._is_prepared = False

    @abstractmethod
    def connect(self, url: BucketUrl) -> Any:
        """Return the library's client for a bucket and prefix.

        Raises:
            ConfigError: this process has no credentials for it.
        """

    # Reading.

    def names(self) -> list[str]:
        return [name for name in self._bucket.names() if name not in (_DATA, _CREATE_ONLY)]

    def files(self, name: str) -> set[str]:
        folder = self._staged(name) if _is_marker(name) else self._read_folder(name)
        found = {fact.key.removeprefix(f"{folder}/") for fact in self._bucket.below(folder)}
        return found if _is_marker(name) else found | {MANIFEST}

    def exists(self, key: str) -> bool:
        name, file = _split(key)
        if not file:
            return self._bucket.exists(f"{name}/{MANIFEST}") or self._bucket.exists(name)
        try:
            return self._bucket.exists(self._path(name, file))
        except FileNotFoundError:
            return False

    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        name, file = _split(key)
        if not file or (file == MANIFEST and not _is_marker(name)):
            whole = self._read_manifest(name) if file else self._bucket.get(name)
            return whole[start : None if count is None else start + count]
        path = self._path(name, file)
        if start == 0 and count is None:
            return self._bucket.get(path)
        left = self._bucket.size(path) - start
        wanted = left if count is None else min(count, left)
        return bytes(self._bucket.get_range(path, start, wanted)) if wanted > 0 else b""

    def open(self, key: str) -> ObjectStream:
        name, file = _split(key)
        committed = file == MANIFEST and not _is_marker(name)
        return ObjectStream(self._bucket, key if committed or not file else self._path(name, file))

    # Writing.

    def prepare(self) -> None:
        if self._is_prepared:
            return
        try:
            self._bucket.create(_CREATE_ONLY, b"")
            self._bucket.create(_CREATE_ONLY, b"")
        except FileExistsError:
            self._is_prepared = True
            return
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.EACCES):
                raise
            raise ConfigError(
                f"checkpoints cannot be written to {self._url}: {error.strerror}",
                hint="create the bucket, or correct checkpoint.directory"
                if error.errno == errno.ENXIO
                else "the credentials must allow to list, read, write and delete below it",
            ) from None
        raise ConfigError(
            f"{self._url} replaces an object that was to be written only if it is not there",
            cause="the store ignores If-None-Match, by which a checkpoint is committed: of two writers both "
            "would succeed",
            hint="another store, or a later version of its server",
        )

    def create_staging(self, staging: str) -> None:
        folder = f"{_DATA}/{staging.lstrip('.')}.{secrets.token_hex(8)}"
        self._bucket.put(staging, Marker(folder).to_bytes())

    @contextmanager
    def new_file(self, key: str) -> Iterator[Write]:
        staging, file = _split(key)
        with self._bucket.writer(f"{self._staged(staging)}/{file}") as write:
            yield write

    def seal(self, staging: str) -> None:
        """Every file is durable and listed already."""

    def commit(self, staging: str, name: str) -> None:
        folder = self._staged(staging)
        manifest = self._bucket.get(f"{folder}/{MANIFEST}")
        # From here on the marker alone does not say that its files belong to nobody.
        self._bucket.put(staging, Marker(folder, name).to_bytes())
        try:
            self._bucket.create(f"{name}/{MANIFEST}", _with_folder(folder, manifest))
        except OSError:
            # A request may be sent twice, or its answer be lost: then the one that is there is ours.
            if self._folder_of(name) != folder:
                raise
        self._folders[name] = folder
        with suppress(OSError):  # it is committed: the next attempt removes the marker
            self._bucket.delete([staging])

    def sync(self) -> None:
        """What the store has accepted is durable."""

    def replace_record(self, record: str, payload: bytes, temporary: str) -> None:
        self._bucket.put(record, payload)

    def quarantine(self, name: str) -> str:
        raw = self._bucket.get(f"{name}/{MANIFEST}")
        number = 1
        while True:
            target = f"{QUARANTINE}/{name}-{number}"
            try:
                self._bucket.create(f"{target}/{MANIFEST}", raw)
                break
            except FileExistsError:
                if self._bucket.get(f"{target}/{MANIFEST}") == raw:
                    break  # a call before this one ended half way
                number += 1
        self._bucket.delete([f"{name}/{MANIFEST}"])
        self._folders.pop(name, None)
        return target

    def quarantined(self) -> list[str]:
        found = [
            (fact.written, _number_of(fact.key), fact.key.removesuffix(f"/{MANIFEST}"))
            for fact in self._bucket.below(QUARANTINE)
        ]
        return [name for _written, _number, name in sorted(found)]

    def retire(self, name: str, temporary: str) -> None:
        folder = self._folder_of(name)
        if folder is not None:
            self._bucket.put(temporary, Marker(folder, name).to_bytes())
        self._bucket.delete([f"{name}/{MANIFEST}"])
        self._folders.pop(name, None)
        self.remove(temporary)

    def remove(self, name: str) -> None:
        if not _is_marker(name):
            self._remove_checkpoint(name)
            return
        try:
            marker = Marker.from_bytes(self._bucket.get(name))
        except FileNotFoundError:
            return
        if marker is not None and not self._is_used(marker):
            self._remove_files(marker.folder)
        self._bucket.delete([name])

    def _remove_checkpoint(self, name: str) -> None:
        folder = self._folder_of(name)
        self._bucket.delete([f"{name}/{MANIFEST}"])
        self._folders.pop(name, None)
        match = _QUARANTINED.fullmatch(name)
        if folder is not None and not self._is_used(Marker(folder, match[1] if match else name)):
            self._remove_files(folder)

    def _remove_files(self, folder: str) -> None:
        self._bucket.delete(fact.key for fact in self._bucket.below(folder))

    def _is_used(self, marker: Marker) -> bool:
        """Whether a checkpoint has its files there: committed, or moved to quarantine since."""
        if marker.name is None:
            return False
        aside = [
            key.removesuffix(f"/{MANIFEST}")
            for key in (fact.key for fact in self._bucket.below(QUARANTINE))
            if key.startswith(f"{QUARANTINE}/{marker.name}-")
        ]
        return any(self._folder_of(name) == marker.folder for name in (marker.name, *aside))

    # Where the files of a name lie.

    def _path(self, name: str, file: str) -> str:
        if _is_marker(name):
            return f"{self._staged(name)}/{file}"
        if file == MANIFEST:
            return f"{name}/{file}"
        return f"{self._folders.get(name) or self._read_folder(name)}/{file}"

    def _staged(self, staging: str) -> str:
        """Where the files of a staging area go; asked for each time, as an area may be made again."""
        marker = Marker.from_bytes(self._bucket.get(staging))
        if marker is None:
            raise FileNotFoundError(f"{self.locate(staging)} is no staging area")
        return marker.folder

    def _read_manifest(self, name: str) -> bytes:
        """The manifest alone; what is no commit of ours comes as it is, and its reader finds it damaged."""
        raw = self._bucket.get(f"{name}/{MANIFEST}")
        head = _HEAD.match(raw)
        if head is None or not raw.endswith(b"}"):
            self._folders.pop(name, None)
            return raw
        self._folders[name] = head[1].decode()
        return raw[head.end() : -1]

    def _read_folder(self, name: str) -> str:
        head = _HEAD.match(self._bucket.begin_of(f"{name}/{MANIFEST}", _HEAD_BYTES))
        # Of a damaged one nothing is there but its manifest.
        folder = f"{_DATA}/unknown" if head is None else head[1].decode()
        self._folders[name] = folder
        return folder

    def _folder_of(self, name: str) -> str | None:
        """Where the files of a committed checkpoint lie; None without one, or with a damaged manifest."""
        try:
            head = _HEAD.match(self._bucket.begin_of(f"{name}/{MANIFEST}", _HEAD_BYTES))
        except FileNotFoundError:
            return None
        return None if head is None else head[1].decode()


def _with_folder(folder: str, manifest: bytes) -> bytes:
    """A JSON object: where the files lie, and the manifest, to the byte."""
    return b'{"data":"' + folder.encode() + b'","manifest":' + manifest + b"}"


def _is_marker(name: str) -> bool:
    return name.startswith(".")


def _split(key: str) -> tuple[str, str]:
    """(name, file) of a key; the file is empty for a name or a record."""
    parts = key.split("/")
    depth = 2 if parts[0] == QUARANTINE else 1
    return "/".join(parts[:depth]), "/".join(parts[depth:])


def _number_of(key: str) -> int:
    digits = key.removesuffix(f"/{MANIFEST}").rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
