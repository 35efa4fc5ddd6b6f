"""Stream container logs for the /log subresource: follow, timestamps, sinceTime, tailLines, limitBytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Protocol

from cluster.api.errors import bad_request
from cluster.api.log_lines import LogLines
from cluster.objects import Manifest

_POLL_S = 0.03


class LogSource(Protocol):
    """Source of the containers' output."""

    def log(self, pod: Manifest, container: str) -> Path:
        """Return the log file; raises ApiError when the container has not started."""

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Whether the container may still write."""


class NoLogSource:
    """Log source of a cluster without nodes."""

    def log(self, pod: Manifest, container: str) -> Path:
        """Raise: no container has started."""
        raise bad_request(f'container "{container}" in pod "{pod["metadata"]["name"]}" is waiting to start')

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Always False."""
        return False


class LogStreams:
    """Log streams of one server."""

    def __init__(self, source: LogSource, lines: LogLines) -> None:
        self._source = source
        self._log_lines = lines

    def read(self, pod: Manifest, container: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Chunks of a log by the query of a request; raises ApiError when the container has not started."""
        path = self._source.log(pod, container)
        follow = query.get("follow", "").lower() in ("true", "1")
        timestamps = query.get("timestamps", "").lower() in ("true", "1")
        read = self._timestamped if timestamps else self._plain
        return read(pod, container, path, follow, query)

    async def _plain(
        self, pod: Manifest, container: str, path: Path, follow: bool, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        with path.open("rb") as log:
            log.seek(_tail_start(path, query.get("tailLines")))
            if limit := int(query.get("limitBytes") or 0):
                yield log.read(limit)
                return
            while True:
                writing = follow and self._source.is_writing(pod, container)
                while chunk := log.read(65536):
                    yield chunk
                if not writing:
                    return
                await asyncio.sleep(_POLL_S)

    async def _timestamped(
        self, pod: Manifest, container: str, path: Path, follow: bool, query: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        index, since = 0, query.get("sinceTime", "")
        while True:
            writing = self._source.is_writing(pod, container)
            index, lines = self._log_lines.read(path, index, not writing, since)
            if lines:
                yield lines
            if not (follow and writing):
                return
            await asyncio.sleep(_POLL_S)


def _tail_start(path: Path, lines: str | None) -> int:
    if lines is None:
        return 0
    text = path.read_bytes()
    kept = text.splitlines(keepends=True)[-int(lines) :] if int(lines) else []
    return len(text) - sum(map(len, kept))
