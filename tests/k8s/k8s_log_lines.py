"""A container's output as the log door tells it: whole lines, each with the time of its writing.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (timestamps, sinceTime)
The runtime stamps lines as they are written; here a line gets its stamp when it is first looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path


@dataclass
class _Seen:
    """Stamped lines of a file, and how far it was read."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = 0


@dataclass
class LogLines:
    """The stamped lines of all files; outlives a server that goes away."""

    _files: dict[Path, _Seen] = field(default_factory=dict)

    def read(self, path: Path, index: int, is_over: bool, since: str = "") -> tuple[int, bytes]:
        """Lines from this one on, each behind its stamp; and the index of the next.

        Args:
            is_over: nothing more will be written: what stands after the last newline is a line too.
            since: RFC 3339, of whole seconds: no line that was written before it.
        """
        seen = self._files.setdefault(path, _Seen())
        _look(seen, path, is_over)
        first = int(datetime.fromisoformat(since).timestamp()) * 10**9 if since else 0
        told = [_stamp(at) + b" " + text for at, text in seen.lines[index:] if at >= first]
        return len(seen.lines), b"".join(told)


def _look(seen: _Seen, path: Path, is_over: bool) -> None:
    with path.open("rb") as log:
        log.seek(seen.offset)
        new = log.read()
    end = len(new) if is_over else new.rfind(b"\n") + 1
    at = time.time_ns()
    seen.lines += [(at, line) for line in new[:end].splitlines(keepends=True)]
    seen.offset += end


def _stamp(at: int) -> bytes:
    """As Go's RFC3339Nano: zeros at the end are left out."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9))
    fraction = f".{at % 10**9:09d}".rstrip("0").rstrip(".")
    return f"{whole}{fraction}Z".encode()
