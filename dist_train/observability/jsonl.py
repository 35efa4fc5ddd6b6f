"""metrics.jsonl of the run directory: one JSON line per record."""

from __future__ import annotations

import os

from dist_train.observability.sink import Record, SinkContext
from dist_train.rundir.metrics_file import append_metric


class JsonlSink:
    """Appends each record in a single write, so that a kill at any moment leaves whole lines."""

    def __init__(self, context: SinkContext) -> None:
        self._path = None if context.run_dir is None else context.run_dir.metrics

    def record(self, record: Record) -> None:
        """Append one line."""
        if self._path is not None:
            append_metric(self._path, record)

    def flush(self) -> None:
        """fsync: a checkpoint that survives a power loss must not be ahead of its records."""
        if self._path is None or not self._path.exists():
            return
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Flush; nothing is kept open."""
        self.flush()


SINK = JsonlSink
