"""Event files for TensorBoard, in tensorboard/ of the run directory: one curve per number of a record.

    logging: {sinks: [tensorboard]}                          tensorboard --logdir runs
    logging: {sinks: [{name: tensorboard, flush_s: 10}]}

Written without torch and without a thread of its own. After a restart the steps that are done again
replace those that an earlier attempt wrote.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from pydantic import Field

from dist_train.errors import ConfigError
from dist_train.observability.sink import Record, SinkContext, SinkOptions
from dist_train.rundir.directory import RunDir

# Checked before anything starts (registry.missing).
REQUIRES = {"tensorboard": "pip install 'dist-train[tensorboard]'"}
# The axis of the curves, and numbers that stay the same.
_NO_CURVE = frozenset(
    {"schema_version", "step", "total_steps", "samples", "epochs", "memory_rank", "gradient_number"}
)


class TensorBoardOptions(SinkOptions):
    """Options of the sink `tensorboard`."""

    flush_s: float = Field(
        default=0.0, ge=0, description="Seconds between two writes to the file; 0: each record at once."
    )


class TensorBoardSink:
    """Appends to one event file per start of rank 0; raises ConfigError where tensorboard is missing."""

    Options = TensorBoardOptions

    def __init__(
        self,
        context: SinkContext,
        options: TensorBoardOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._flush_s = (options or TensorBoardOptions()).flush_s
        self._clock = clock
        self._flushed_at = float("-inf")
        self._file: BinaryIO | None = None
        self._purged = False
        if context.run_dir is not None:
            self._events, self._writer = _import()
            self._file = _open(context.run_dir)
            self._write(file_version="brain.Event:2")

    def record(self, record: Record) -> None:
        """Write one event with all numbers of the record."""
        if self._file is None:
            return
        step = int(record["step"])
        if not self._purged:
            # Readers drop what an earlier attempt wrote of this step and later ones.
            self._purged = True
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(step=step, session_log=start)
        self._write(step=step, summary=self._summary(record))
        # By default at once: TensorBoard shows it now, and a kill tears no record in the middle of a buffer.
        if self._clock() - self._flushed_at >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Give everything to the operating system."""
        if self._file is not None:
            self._flushed_at = self._clock()
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _summary(self, record: Record) -> Any:
        from tensorboard.compat.proto.summary_pb2 import Summary

        kind = record.get("kind", "train")
        values = [Summary.Value(tag=f"{kind}/{name}", simple_value=value) for name, value in numbers(record)]
        return Summary(value=values)

    def _write(self, **fields: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **fields)
        self._writer(self._file).write(event.SerializeToString())


def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of each number of a record that makes a curve; metrics by their own names."""
    for name, value in record.items():
        if name == "metrics" and isinstance(value, Mapping):
            yield from numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in _NO_CURVE:
            yield name, float(value)


def _import() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ConfigError(
            "the sink tensorboard needs the package tensorboard",
            cause=str(error),
            hint=f"{REQUIRES['tensorboard']}, or drop it from logging.sinks",
        ) from error
    return event_pb2, RecordWriter


def _open(run: RunDir) -> BinaryIO:
    run.tensorboard.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Readers take files in the order of their names: ten digits of seconds, then what makes it unique.
    name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}"
    number = 0
    while True:
        try:
            return (run.tensorboard / f"{name}.{number}").open("xb")
        except FileExistsError:
            number += 1


SINK = TensorBoardSink
