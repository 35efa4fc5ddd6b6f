"""One record to every sink; a sink that fails is reported once and never stops training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from dist_train import registry
from dist_train.config.adapter_options import check_options
from dist_train.observability.sink import Record, Sink, SinkContext, SinkFactory

logger = logging.getLogger(__name__)


class SinkFanout:
    """All sinks of a run, by name; on ranks other than 0 it is empty and every call does nothing."""

    def __init__(
        self,
        sinks: Mapping[str, Sink] | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._sinks = dict(sinks or {})
        self._around = around
        self._reported: set[str] = set()

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        context: SinkContext,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> SinkFanout:
        """Open the sinks of these names.

        A known sink that cannot be opened is an error, too: it was asked for, and nothing runs yet.

        Args:
            options: name -> options of that sink.
            around: entered around every call of the sinks: what they draw must not reach the training.

        Raises:
            ConfigError: an unknown name or option, with the nearest one.
        """
        with around():
            opened = {name: open_sink(name, context, (options or {}).get(name, {})) for name in names}
        return cls(opened, around)

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
                with self._around():
                    call(sink)
            # A record that is not written must not end a training run, whatever a sink's library raises.
            except (Exception, SystemExit) as error:
                if name not in self._reported:
                    self._reported.add(name)
                    logger.warning(
                        "the sink %s failed to %s (reported once, training goes on): %r", name, what, error
                    )


def open_sink(name: str, context: SinkContext, options: Mapping[str, Any]) -> Sink:
    """The registry's sink of this name, with its options checked."""
    factory = cast(SinkFactory, registry.load("sinks", name))
    checked = check_options(f"the sink {name}", factory, options)
    return factory(context, checked) if hasattr(factory, "Options") else factory(context)
