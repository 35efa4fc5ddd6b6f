"""Readers of shards: what they give, what they count, and that a tar archive's unused samples stay unread."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.streams.shard_readers import JsonLinesReader, LineReader, ParquetReader, reader_for
from dist_train.data.streams.sharded_stream import ShardedStream
from dist_train.data.streams.tar_reader import TarReader
from dist_train.errors import ConfigError


def read_all(reader: Any, path: Path) -> list[Any]:
    decode = getattr(reader, "decode", lambda sample: sample)
    samples = [decode(sample) for sample in reader(path)]
    assert reader.count(path) == len(samples)
    return samples


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", []), ("a\n", ["a"]), ("a\n\nb", ["a", "", "b"]), ("ä\r\nb\r\n", ["ä", "b"]), ("\n\n", ["", ""])],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines(tmp_path: Path, text: str, lines: list[str], packed: bool) -> None:
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read_all(LineReader(), path) == lines
    assert type(reader_for(path)) is LineReader


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    values = [{"x": 1}, [2, None], "drei"]
    path.write_text("\n".join(json.dumps(value) for value in values))
    assert read_all(reader_for(path), path) == values
    assert isinstance(reader_for(path), JsonLinesReader)


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        archive.addfile(folder("images"))
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


MEMBERS = [("images/a.png", b"A"), ("images/a.cls", b"1"), ("images/b.seg.png", b"B" * 2000), ("b.png", b"")]
SAMPLES = [
    {"__key__": "images/a", "png": b"A", "cls": b"1"},
    {"__key__": "images/b", "seg.png": b"B" * 2000},
    {"__key__": "b", "png": b""},
]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_tar_members_with_one_name_are_a_sample(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / name, MEMBERS)
    assert read_all(reader_for(tmp_path / name), tmp_path / name) == SAMPLES


def test_samples_of_a_closed_archive_can_still_be_decoded(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", MEMBERS)
    reader = TarReader()
    assert [reader.decode(sample) for sample in list(reader(tmp_path / "a.tar"))] == SAMPLES


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.png", b"1"), ("a.png", b"2")])
    with pytest.raises(ConfigError, match="two members of one name"):
        list(TarReader()(tmp_path / "a.tar"))


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, [("a.png", b"1" * 5000), ("b.png", b"2" * 5000)])
    path.write_bytes(path.read_bytes()[:8000])
    with pytest.raises(ConfigError, match=r"cannot count shard .*a.tar"):
        ShardedStream([path]).counts  # noqa: B018


def test_a_stream_of_tar_archives_reads_each_sample_once(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"{number}.tar", [(f"{number}-{at}.txt", b"%d" % at) for at in range(10)])
    data = ShardedStream(str(tmp_path / "*.tar"), transform=lambda sample: sample["__key__"])
    keys = [key for batch in ExactLoader(data, 8, workers=2) for key in batch]
    assert len(keys) == len(set(keys)) == 30


def test_parquet_without_pyarrow_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="need pyarrow") as error:
        ParquetReader().count("a.parquet")
    assert error.value.hint == "pip install pyarrow"


class ParquetFile:
    """The part of pyarrow.parquet.ParquetFile that is used, for an environment without pyarrow."""

    metadata = SimpleNamespace(num_rows=5)

    def __init__(self, path: Any) -> None:
        assert str(path) == "a.parquet"

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def iter_batches(self, batch_size: int, columns: list[str] | None) -> Iterator[Any]:
        rows = [{"x": at, "y": -at} for at in range(5)]
        for at in range(0, 5, batch_size):
            part = [{name: row[name] for name in columns or row} for row in rows[at : at + batch_size]]
            yield SimpleNamespace(to_pylist=lambda part=part: part)


def test_parquet_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pyarrow.parquet")
    module.ParquetFile = ParquetFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    reader = ParquetReader(columns=["x"], batch_rows=2)
    assert read_all(reader, Path("a.parquet")) == [{"x": at} for at in range(5)]
