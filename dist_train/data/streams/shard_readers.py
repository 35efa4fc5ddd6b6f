"""Readers of shards: lines, JSON lines and Parquet; tar archives are in `tar_reader`.

A reader is called with a shard and iterates over its samples, always the same in the same order. It may
have `decode`, which is applied only to samples that are used, and `count`, which is faster than reading.
"""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from dist_train.errors import ConfigError

_BLOCK_BYTES = 1 << 20


class ShardReader(Protocol):
    """What reads a shard; any function from a shard to an iterator is one."""

    def __call__(self, shard: Any, /) -> Iterator[Any]:
        """The samples of a shard, in order."""
        ...


class LineReader:
    """Text files, plain or .gz, one sample per line: `str` without its line end; empty lines count."""

    def __call__(self, shard: Any) -> Iterator[bytes]:
        """The lines of a file, as bytes."""
        with _opened(Path(shard)) as file:
            for line in file:
                yield line.rstrip(b"\r\n")

    def count(self, shard: Any) -> int:
        """Number of lines."""
        lines, last = 0, b"\n"
        with _opened(Path(shard)) as file:
            while block := file.read(_BLOCK_BYTES):
                lines += block.count(b"\n")
                last = block[-1:]
        return lines + (last != b"\n")

    def decode(self, line: bytes) -> Any:
        """The line as text."""
        return line.decode()


class JsonLinesReader(LineReader):
    """JSON Lines, plain or .gz: one JSON value per line."""

    def decode(self, line: bytes) -> Any:
        """The line's JSON value."""
        return json.loads(line)


class ParquetReader:
    """Parquet files: one dict of Python values per row; needs pyarrow.

    Args:
        columns: names to read; None reads all.
        batch_rows: rows that are read at once.
    """

    def __init__(self, columns: list[str] | None = None, batch_rows: int = 1024) -> None:
        self.columns = columns
        self.batch_rows = batch_rows

    def __call__(self, shard: Any) -> Iterator[dict[str, Any]]:
        """The rows of a file."""
        with _parquet().ParquetFile(shard) as file:
            for batch in file.iter_batches(batch_size=self.batch_rows, columns=self.columns):
                yield from batch.to_pylist()

    def count(self, shard: Any) -> int:
        """Number of rows, from the file's metadata."""
        with _parquet().ParquetFile(shard) as file:
            return int(file.metadata.num_rows)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet shards need pyarrow, which is not installed",
            cause=str(error),
            hint="pip install pyarrow",
        ) from error


def reader_for(shard: Any) -> ShardReader:
    """The reader that fits a file's name.

    Raises:
        ConfigError: no reader is known for it.
    """
    from dist_train.data.streams.tar_reader import TarReader

    name = str(shard)
    known: dict[tuple[str, ...], type] = {
        (".jsonl", ".jsonl.gz", ".ndjson"): JsonLinesReader,
        (".txt", ".txt.gz"): LineReader,
        (".tar", ".tar.gz", ".tgz"): TarReader,
        (".parquet",): ParquetReader,
    }
    for endings, reader in known.items():
        if name.endswith(endings):
            return cast(ShardReader, reader())
    raise ConfigError(
        f"no reader is known for the shard {name!r}",
        hint="give reader=: a function from a shard to an iterator over its samples",
    )
