"""Plain lines for people: one every few seconds and one at each evaluation; no escape codes."""

from __future__ import annotations

import time
from collections.abc import Callable

from dist_train.observability.sink import Record, SinkContext

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
    """`epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  data wait 3 %`."""
    parts = [
        f"epoch {record['epoch'] + 1}/{context.epochs}",
        f"step {record['step']}/{context.total_steps}",
        *_figures(record),
        f"lr {record['lr']:.3g}",
    ]
    if record.get("samples_per_s"):
        parts.append(f"{record['samples_per_s']:.0f} samples/s")
    if record.get("data_wait") is not None:
        parts.append(f"data wait {100 * record['data_wait']:.0f} %")
    return "  ".join(parts)


def eval_line(record: Record, context: SinkContext) -> str:
    """`evaluation after epoch 2/10  step 46/230  loss 0.2011  accuracy 0.9416`."""
    where = f"evaluation after epoch {record['epoch'] + 1}/{context.epochs}"
    return "  ".join([where, f"step {record['step']}/{context.total_steps}", *_figures(record)])


def _figures(record: Record) -> list[str]:
    named = {"loss": record["loss"], **record.get("metrics", {})}
    return [f"{name} {value:.4f}" for name, value in named.items()]


SINK = ConsoleSink
