"""The contract of checkpoint storages catches what it is for: one broken storage per rule."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.checkpoint import CheckpointStorage
from dist_train.checkpoint.store.file import FileStorage, FileStream
from dist_train.testing.contracts import storage_contract as contract


class CreatesOnRead(FileStorage):
    def names(self) -> list[str]:
        self.prepare()
        (self.directory / "cache").mkdir(exist_ok=True)
        return super().names()


class HidesErrors(FileStorage):
    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        return super().read(key, start, count) if self.exists(key) else b""


class WritesInPlace(FileStorage):
    """Its staging area is the checkpoint itself."""

    def create_staging(self, staging: str) -> None:
        super().create_staging("step-00000007")

    def new_file(self, key: str):  # type: ignore[no-untyped-def]
        return super().new_file(f"step-00000007/{key.rpartition('/')[2]}")

    def seal(self, staging: str) -> None: ...


class SeesNoStaging(FileStorage):
    """Answers for committed checkpoints only."""

    def exists(self, key: str) -> bool:
        return not key.startswith(".") and super().exists(key)


class IgnoresRanges(FileStorage):
    def read(self, key: str, start: int = 0, count: int | None = None) -> bytes:
        return super().read(key)


class GuessesSizes(FileStorage):
    def open(self, key: str) -> FileStream:
        class Guess(FileStream):
            @property
            def size(self) -> int:
                return 1 << 20

        return Guess(self.directory / key)


class Replaces(FileStorage):
    def commit(self, staging: str, name: str) -> None:
        shutil.rmtree(self.directory / name, ignore_errors=True)
        super().commit(staging, name)


class HidesLeftovers(FileStorage):
    def names(self) -> list[str]:
        return [name for name in super().names() if not name.startswith(".")]


class WritesRecordsInPlace(FileStorage):
    def replace_record(self, record: str, payload: bytes, temporary: str) -> None:
        half = len(payload) // 2
        (self.directory / record).write_bytes(payload[:half])
        self.read(record)
        with open(self.directory / record, "ab") as file:
            file.write(payload[half:])


class DeletesFromQuarantine(FileStorage):
    def quarantine(self, name: str) -> str:
        moved = super().quarantine(name)
        os.unlink(self.directory / moved / "state.json")
        return moved


class KeepsRetired(FileStorage):
    def retire(self, name: str, temporary: str) -> None:
        os.rename(self.directory / name, self.directory / temporary)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (CreatesOnRead, contract.check_nothing_there, "has names"),
        (HidesErrors, contract.check_nothing_there, "read of a missing key raises no FileNotFoundError"),
        (WritesInPlace, contract.check_commit, "before its commit"),
        (SeesNoStaging, contract.check_several_writers, "another rank has written"),
        (IgnoresRanges, contract.check_ranges, "read\\("),
        (GuessesSizes, contract.check_ranges, "the size of .* is 1048576"),
        (Replaces, contract.check_no_commit_replaces, "raises no FileExistsError"),
        (HidesLeftovers, contract.check_leftovers, "is not listed"),
        (WritesRecordsInPlace, contract.check_records, "half replaced"),
        (DeletesFromQuarantine, contract.check_quarantine, "has the files"),
        (KeepsRetired, contract.check_retire, "after retire there is"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_storage_is_refused(
    tmp_path: Path,
    broken: type[FileStorage],
    check: Callable[[CheckpointStorage], None],
    words: str,
) -> None:
    with pytest.raises(AssertionError, match=words):
        check(broken(tmp_path / "run"))


def test_a_class_that_is_not_registered(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="another class for file://"):
        contract.check_storage(lambda: Replaces(tmp_path))
