"""How records are written: atomically, privately, with a schema version and a UTC time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def now_rfc3339() -> str:
    """The time now in RFC 3339, UTC, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_bytes_atomic(path: Path, payload: bytes, mode: int = 0o600) -> None:
    """Write beside the target, fsync, rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json_atomic(path: Path, record: Mapping[str, Any]) -> None:
    """Write one JSON object with schema_version and time (both may be given by the caller)."""
    whole = {"schema_version": SCHEMA_VERSION, "time": now_rfc3339(), **record}
    write_bytes_atomic(path, (json.dumps(whole, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The record, or None when it does not exist (yet)."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return record if isinstance(record, dict) else None


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write; a reader may meet a torn last line, no other.

    A torn line left by a killed writer is ended first, so that it never swallows ours.
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
    """Every whole JSON object of a file of lines; torn lines are skipped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if (record := parse_line(line)) is not None:
                yield record


class Appended:
    """A file of lines, looked at again and again: each look reads only what has come since the last one.

    Args:
        tail: of what is there at the first look only so many bytes at its end; None takes all.
    """

    def __init__(self, path: Path, tail: int | None = None) -> None:
        self._path = path
        self._tail = tail
        self._at: int | None = None

    def look(self) -> list[bytes]:
        """The lines that are new and whole, without their ends."""
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
    """The record of one line; None for a torn one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
