"""Timestamped lines of container logs, for the /log subresource.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (timestamps, sinceTime)
The runtime stamps lines as they are written; here a line gets its timestamp when it is first read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path


@dataclass
class _LogFile:
    """Timestamped lines of a file, and the offset read so far."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = 0


@dataclass
class LogLines:
    """Timestamped lines of all files; kept across restarts of the server."""

    _files: dict[Path, _LogFile] = field(default_factory=dict)

    def read(self, path: Path, index: int, is_over: bool, since: str = "") -> tuple[int, bytes]:
        """Return the index of the next line, and the lines from `index` on with their timestamps.

        Args:
            is_over: the container has ended: text after the last newline is a line too.
            since: RFC 3339, whole seconds; earlier lines are left out.
        """
        file = self._files.setdefault(path, _LogFile())
        _read_new(file, path, is_over)
        first = int(datetime.fromisoformat(since).timestamp()) * 10**9 if since else 0
        lines = [_timestamp(at) + b" " + text for at, text in file.lines[index:] if at >= first]
        return len(file.lines), b"".join(lines)


def _read_new(file: _LogFile, path: Path, is_over: bool) -> None:
    with path.open("rb") as log:
        log.seek(file.offset)
        new = log.read()
    end = len(new) if is_over else new.rfind(b"\n") + 1
    at = time.time_ns()
    file.lines += [(at, line) for line in new[:end].splitlines(keepends=True)]
    file.offset += end


def _timestamp(at: int) -> bytes:
    """Format as Go's RFC3339Nano, without trailing zeros."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9))
    fraction = f".{at % 10**9:09d}".rstrip("0").rstrip(".")
    return f"{whole}{fraction}Z".encode()
