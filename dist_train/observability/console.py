"""Plain lines for people: one every few seconds and one at each evaluation; no escape codes."""

from __future__ import annotations

import time
from collections.abc import Callable

from dist_train.observability.sink import Record, SinkContext
from dist_train.rundir import telling

INTERVAL_S = 5.0


class ConsoleSink:
    """Writes the first record, then one every `interval_s` seconds, every evaluation, and the last."""

    def __init__(
        self,
        context: SinkContext,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._interval_s = interval_s
        self._clock = clock
        self._next = float("-inf")
        self._held: Record | None = None

    def record(self, record: Record) -> None:
        """Write the record now, or hold it until the next is due."""
        if record.get("kind") == "eval":
            self._held = None  # it is older than what this line tells
            self._write(eval_line(record, self._context))
        elif self._clock() >= self._next:
            self._next = self._clock() + self._interval_s
            self._held = None
            self._write(train_line(record, self._context))
        else:
            self._held = record

    def flush(self) -> None:
        """Push what was written to the terminal or the log."""
        self._context.stream.flush()

    def close(self) -> None:
        """Write the newest record that was held back: the last line shows where training stands."""
        if self._held is not None:
            self._write(train_line(self._held, self._context))
            self._held = None

    def _write(self, line: str) -> None:
        self._context.stream.write(line + "\n")
        self._context.stream.flush()


def train_line(record: Record, context: SinkContext) -> str:
    """`epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  …`."""
    return telling.train_line({**_lengths(context), **record})


def eval_line(record: Record, context: SinkContext) -> str:
    """`evaluation after epoch 2/10  step 46/230  loss 0.2011  accuracy 0.9416`."""
    return telling.eval_line({**_lengths(context), **record})


def _lengths(context: SinkContext) -> dict[str, int]:
    return {"epochs": context.epochs, "total_steps": context.total_steps}


SINK = ConsoleSink
