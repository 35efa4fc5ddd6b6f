"""Records: atomic JSON files; files of lines whose torn lines are skipped."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from dist_train.rundir import RunDir, records
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.records import (
    FileTail,
    append_line,
    read_json,
    read_lines,
    write_bytes_atomic,
    write_json_atomic,
)


def test_a_growing_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    tail = FileTail(path)
    assert tail.read_new() == []
    path.write_bytes(b"one\ntwo\nthr")
    assert tail.read_new() == [b"one", b"two"]
    assert tail.read_new() == []
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert tail.read_new() == [b"three"]
    assert FileTail(path, tail=8).read_new() == [b"o", b"three"], "of a long one only the end"


def test_a_json_record_carries_version_and_time(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "r.json", {"a": 1})
    record = read_json(tmp_path / "r.json")
    assert record is not None
    assert (record["schema_version"], record["a"]) == (1, 1)
    assert record["time"].endswith("Z")
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o600
    assert read_json(tmp_path / "absent.json") is None


def test_a_failed_write_leaves_only_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_bytes_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_reader_sees_the_old_record_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_json_atomic(path, {"n": 0, "pad": "x" * 10_000})
    over = threading.Event()

    def write() -> None:
        for n in range(200):
            write_json_atomic(path, {"n": n, "pad": "x" * 10_000})
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        record = read_json(path)
        assert record is not None
        assert len(record["pad"]) == 10_000
    writer.join()


@pytest.mark.parametrize("torn", [b'{"n": 9', b'{"n": 9, "t": "\xc3', b"\x00\x00\x00", b'"text"', b"[1]"])
def test_a_torn_line_is_skipped_and_damages_no_later_one(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, {"n": 1})
    with path.open("ab") as file:
        file.write(torn)
    assert [record["n"] for record in read_lines(path)] == [1]
    append_line(path, {"n": 2})
    assert [record["n"] for record in read_lines(path)] == [1, 2]
    assert list(read_lines(tmp_path / "absent.jsonl")) == []


def test_every_cut_of_a_file_gives_a_prefix_of_its_records(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for n in range(3):
        append_line(path, {"n": n})
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = [record["n"] for record in read_lines(path)]
        assert found == list(range(len(found)))
        assert len(found) >= whole[:cut].count(b"\n")


def test_events_of_one_kind_in_order(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    append_event(run, "submitted", launcher="local")
    append_event(run, "restarted", 0, why="killed")
    append_event(run, "restarted", 1, why="again")
    assert [event["why"] for event in read_events(run, "restarted")] == ["killed", "again"]
    assert [event["attempt"] for event in read_events(run)] == [None, 0, 1]
    assert all(json.dumps(event) for event in read_events(run))
