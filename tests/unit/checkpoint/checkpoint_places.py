"""Places where checkpoints are kept, with what a test does to them behind the storage's back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from memory_storage import BUCKETS

from dist_train import registry
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.store.checkpoint_names import read_manifest
from dist_train.checkpoint.store.fence import Fence, read_fence
from dist_train.checkpoint.store.open_storage import open_storage
from dist_train.rundir.step_names import step_name

GROUP = "dist_train.checkpoint_storages"


@contextmanager
def memory_registered(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """`memory://` as a plug-in registers it: by an entry point."""
    entry = EntryPoint("memory", "memory_storage:STORAGE", GROUP)
    patch.setattr(registry, "entry_points", lambda group: [entry] if group == GROUP else [])
    registry._owners.cache_clear()
    yield
    registry._owners.cache_clear()
    BUCKETS.clear()


class Place:
    """A location of checkpoints; `location` is what a manager is given."""

    def __init__(self, location: str | Path) -> None:
        self.location = location

    @property
    def storage(self) -> Any:
        return open_storage(self.location)

    def names(self) -> set[str]:
        return set(self.storage.names())

    def manifest(self, step: int) -> Manifest:
        return read_manifest(self.storage, step_name(step))

    def fence(self) -> Fence:
        fence = read_fence(self.storage)
        assert fence is not None
        return fence

    def read(self, key: str) -> bytes:
        return self.storage.read(key)

    def flip(self, key: str, position: int, bit: int) -> None:
        raw = bytearray(self.read(key))
        raw[position] ^= 1 << bit
        self.write(key, bytes(raw))

    def fill(self, directory: Path) -> None:
        """Put everything of a directory here."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.write(path.relative_to(directory).as_posix(), path.read_bytes())

    def write(self, key: str, payload: bytes) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def copy(self, name: str, other: str) -> None:
        for file in self.storage.files(name):
            self.write(f"{other}/{file}", self.read(f"{name}/{file}"))


class DirectoryPlace(Place):
    def write(self, key: str, payload: bytes) -> None:
        path = Path(self.location, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload)

    def delete(self, key: str) -> None:
        path = Path(self.location, key)
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class MemoryPlace(Place):
    def write(self, key: str, payload: bytes) -> None:
        folder, _, file = key.rpartition("/")
        BUCKETS.setdefault(str(self.location), {"": {}}).setdefault(folder, {})[file] = payload

    def delete(self, key: str) -> None:
        folder, _, file = key.rpartition("/")
        del BUCKETS[str(self.location)][folder][file]
