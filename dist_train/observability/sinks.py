"""The fan-out: one record to every sink; a sink that fails is reported once and never stops training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from dist_train import registry
from dist_train.observability.sink import Record, Sink, SinkContext, SinkFactory

logger = logging.getLogger(__name__)


class Sinks:
    """All sinks of a run, by name; on ranks other than 0 it is empty and every call does nothing."""

    def __init__(self, sinks: Mapping[str, Sink] | None = None) -> None:
        self._sinks = dict(sinks or {})
        self._reported: set[str] = set()

    @classmethod
    def open(cls, names: Sequence[str], context: SinkContext) -> Sinks:
        """Open the sinks of these names; raises ConfigError for a name that does not exist.

        A known sink that cannot be opened is an error too: it was asked for, and nothing runs yet.
        """
        return cls({name: cast(SinkFactory, registry.load("sinks", name))(context) for name in names})

    def record(self, record: Record) -> None:
        """Give one record to every sink."""
        self._each("record", lambda sink: sink.record(record))

    def flush(self) -> None:
        """Flush every sink."""
        self._each("flush", lambda sink: sink.flush())

    def close(self) -> None:
        """Close every sink; a second call does nothing."""
        self._each("close", lambda sink: sink.close())
        self._sinks.clear()

    def _each(self, what: str, call: Callable[[Sink], None]) -> None:
        for name, sink in self._sinks.items():
            try:
                call(sink)
            # Telling must not end a training run, whatever a sink's own library raises.
            except Exception as error:
                if name not in self._reported:
                    self._reported.add(name)
                    logger.warning(
                        "the sink %s failed to %s (reported once, training goes on): %r", name, what, error
                    )
