"""Every sink that the registry finds keeps the sinks' contract."""

from __future__ import annotations

from typing import Any

import pytest

from dist_train import registry
from dist_train.observability.sink import Record, SinkContext, SinkFactory
from dist_train.testing import check_sink


@pytest.mark.parametrize("name", registry.names("sinks"))
def test_sink(name: str) -> None:
    sink: Any = registry.load("sinks", name)
    check_sink(sink)


class Renames:
    """Somebody else's: takes no options and writes into the record."""

    def __init__(self, context: SinkContext) -> None: ...

    def record(self, record: Record) -> None:
        record["loss"] = 0.0  # type: ignore[index]

    def flush(self) -> None: ...

    def close(self) -> None: ...


def test_a_sink_that_changes_records_is_found() -> None:
    factory: SinkFactory = Renames
    with pytest.raises(AssertionError, match="changed the record"):
        check_sink(factory)
