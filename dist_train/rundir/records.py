"""Write records: atomically, with mode 0600, a schema version and a UTC time; and read them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dist_train.rundir.durable_files import durable_file

SCHEMA_VERSION = 1


def now_rfc3339() -> str:
    """The current time in RFC 3339, UTC, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_bytes_atomic(path: Path, payload: bytes, mode: int = 0o600) -> None:
    """Write a temporary file, fsync, rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with durable_file(temporary, mode, exclusive=False) as write:
            write(memoryview(payload))
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):  # on a read-only disk also of a file that is not there
            temporary.unlink()
        raise


def write_json_atomic(path: Path, record: Mapping[str, Any]) -> None:
    """Write one JSON object with schema_version and time (the caller may pass both)."""
    whole = {"schema_version": SCHEMA_VERSION, "time": now_rfc3339(), **record}
    write_bytes_atomic(path, (json.dumps(whole, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The record, or None if the file does not exist (yet)."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record if isinstance(record, dict) else None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write; only the last line of a file may be torn.

    A torn line that a killed writer left is ended first, so that ours stays readable.
    """
    payload = (json.dumps(record) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            payload = b"\n" + payload
        os.write(descriptor, payload)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read every JSON object of a file of lines; torn lines are skipped."""
    for line in raw_lines(path):
        if (record := parse_line(line)) is not None:
            yield record


def raw_lines(path: Path) -> Iterator[bytes]:
    """Read every line as it is, a torn one without its end; none where there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from file


class FileTail:
    """Read a growing file of lines, each call only what was appended since the last one.

    Args:
        tail: the first call reads only this many bytes at the end; None: the whole file.
    """

    def __init__(self, path: Path, tail: int | None = None) -> None:
        self._path = path
        self._tail = tail
        self._at: int | None = None

    def read_new(self) -> list[bytes]:
        """The new complete lines, without their line ends."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if self._at is None:
                    self._at = 0 if self._tail is None else max(0, size - self._tail)
                file.seek(self._at)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._at += len(whole) + len(end)
        return whole.split(b"\n") if end else []


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse one line; None for a torn one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
