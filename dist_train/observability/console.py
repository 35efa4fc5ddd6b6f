"""Plain lines for people: one every few seconds and one at each evaluation; no escape codes."""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic import Field

from dist_train.observability.sink import Record, SinkContext, SinkOptions
from dist_train.rundir import metric_text


class ConsoleOptions(SinkOptions):
    """Options of the sink `console`."""

    interval_s: float = Field(default=5.0, ge=0, description="Seconds between two lines of training steps.")


class ConsoleSink:
    """Writes the first record, then one every `interval_s` seconds, every evaluation, and the last."""

    Options = ConsoleOptions

    def __init__(
        self,
        context: SinkContext,
        options: ConsoleOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._interval_s = (options or ConsoleOptions()).interval_s
        self._clock = clock
        self._next = float("-inf")
        self._pending: Record | None = None

    def record(self, record: Record) -> None:
        """Write the record now, or keep it until the next line is due; what callbacks log is not shown."""
        if record.get("kind") == "callback":
            return
        if record.get("kind") == "eval":
            self._pending = None  # it is older than this line
            self._write(eval_line(record, self._context))
        elif self._clock() >= self._next:
            self._next = self._clock() + self._interval_s
            self._pending = None
            self._write(train_line(record, self._context))
        else:
            self._pending = record

    def flush(self) -> None:
        """Push what was written to the terminal or the log."""
        self._context.stream.flush()

    def close(self) -> None:
        """Write the newest record that has no line yet: the last line shows the last step."""
        if self._pending is not None:
            self._write(train_line(self._pending, self._context))
            self._pending = None

    def _write(self, line: str) -> None:
        self._context.stream.write(line + "\n")
        self._context.stream.flush()


def train_line(record: Record, context: SinkContext) -> str:
    """`epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  …`."""
    return metric_text.train_line({**_lengths(context), **record})


def eval_line(record: Record, context: SinkContext) -> str:
    """`evaluation after epoch 2/10  step 46/230  loss 0.2011  accuracy 0.9416`."""
    return metric_text.eval_line({**_lengths(context), **record})


def _lengths(context: SinkContext) -> dict[str, int]:
    return {"epochs": context.epochs, "total_steps": context.total_steps}


SINK = ConsoleSink
