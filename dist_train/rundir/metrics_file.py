"""metrics.jsonl, and its hash, which does not depend on how often a step was repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dist_train.rundir.records import SCHEMA_VERSION, append_line, now_rfc3339, parse_line, read_lines

# How much of the end of a long file is read.
TAIL_BYTES = 64 * 1024
T = TypeVar("T")
HASHED_FIELDS = ("step", "epoch", "samples", "loss", "lr", "metrics")


def append_metric(path: Path, record: Mapping[str, Any]) -> None:
    """Append one record {kind: train|eval, step, …}."""
    append_line(path, {"schema_version": SCHEMA_VERSION, "time": now_rfc3339(), **record})


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The last record of each (kind, step), in order of step: a repeated step replaces the first one."""
    return _last_of_each(path, lambda record: record)


def _last_of_each(path: Path, kept: Callable[[dict[str, Any]], T]) -> list[T]:
    """Apply `kept` to each record while reading: a run of weeks has too many to hold them whole."""
    last: dict[tuple[int, str], T] = {}
    for record in read_lines(path):
        last[(int(record.get("step", -1)), str(record.get("kind")))] = kept(record)
    return [last[key] for key in sorted(last)]


def last_metrics(path: Path) -> list[dict[str, Any]]:
    """The records in the last 64 KiB, newest last; repeated steps are included."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [record for line in lines if (record := parse_line(line)) is not None]


def metrics_hash(path: Path) -> str:
    """XXH3-128 over the last record per (kind, step), floats as hex (exact to the bit)."""
    import xxhash

    digest = xxhash.xxh3_128()
    for line in _last_of_each(path, _hashed):
        digest.update(line)
    return digest.hexdigest()


def _hashed(record: Mapping[str, Any]) -> bytes:
    kept = {name: _exact(record[name]) for name in HASHED_FIELDS if name in record}
    return f"{record.get('kind')}\0{_canonical(kept)}\n".encode()


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): _exact(item) for name, item in value.items()}
    return value


def _canonical(record: Mapping[str, Any]) -> str:
    import json

    return json.dumps(record, sort_keys=True, separators=(",", ":"))
