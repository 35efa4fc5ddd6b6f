"""Files that several threads read, each at its own place."""

from __future__ import annotations

import io
import itertools
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dist_train.checkpoint.format import hash_threads as threads_module
from dist_train.checkpoint.format.byte_stream import Write, read_at_of
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.hash_threads import hash_threads
from dist_train.checkpoint.format.tensor_file import TensorFile, read_tensors
from dist_train.checkpoint.format.verified_reader import VerifiedReader
from dist_train.checkpoint.store.file import FileStream

MEGA = 1 << 20


def _random(count: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(os.urandom(count)), dtype=torch.uint8)


class _File(io.FileIO):
    """A file that is read at any place; keeps which bytes of it each thread has asked for."""

    def __init__(
        self, path: Path, hurt: Callable[[memoryview, int], int | None] = lambda _view, _start: None
    ):
        super().__init__(path)
        self.asked: list[tuple[str, int, int]] = []
        self.hurt = hurt

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def read_at(self, view: memoryview, start: int) -> int:
        time.sleep(0.002)  # as a disk: the other threads come to it, too
        found = self.hurt(view, start)
        if found is None:
            found = os.preadv(self.fileno(), [view], start)
        self.asked.append((threading.current_thread().name, start, found))
        return found


Written = tuple[Path, dict[str, torch.Tensor], list[str]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setattr(threads_module, "usable_cores", lambda: SimpleNamespace(amount=3))
    tensors = {f"t{number}": _random(3 * MEGA + 12_345) for number in range(8)} | {"small": _random(100)}
    path, raw = tmp_path / "file", bytearray()
    write: Write = raw.extend  # type: ignore[assignment]
    digests = TensorFile(tensors, {}).write(write)
    path.write_bytes(raw)
    return path, tensors, digests


def _read(stream: _File, digests: list[str]) -> dict[str, torch.Tensor]:
    with (
        hash_threads(1 << 30) as threads,
        VerifiedReader(stream, "file", stream.size, digests, threads=threads) as reader,
    ):
        return read_tensors(reader)[1]


def test_several_threads_read_each_byte_once(written: Written) -> None:
    path, tensors, digests = written
    stream = _File(path)
    read = _read(stream, digests)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert len({thread for thread, _start, _count in stream.asked}) > 1
    places = sorted((start, start + count) for _thread, start, count in stream.asked)
    assert places[0][0] == 0
    assert places[-1][1] == path.stat().st_size
    assert all(one[1] == other[0] for one, other in itertools.pairwise(places))


def test_several_threads_check_a_file_without_memory_of_its_size(written: Written) -> None:
    path, _tensors, digests = written
    stream = _File(path)
    with (
        hash_threads(1 << 30) as threads,
        VerifiedReader(stream, "file", stream.size, digests, threads=threads) as reader,
    ):
        tracemalloc.start()
        reader.finish()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(count for _thread, _start, count in stream.asked) == path.stat().st_size
    assert peak < 4 * MEGA


@pytest.mark.parametrize("block", [0, 7, 24])
def test_a_bit_that_another_thread_reads_wrongly_is_found(written: Written, block: int) -> None:
    path, _tensors, digests = written
    bad = min(block * MEGA + 900_000, path.stat().st_size - 1)

    def hurt(view: memoryview, start: int) -> int | None:
        count = os.preadv(stream.fileno(), [view], start)
        if start <= bad < start + count:
            view[bad - start] ^= 4
        return count

    stream = _File(path, hurt)
    with pytest.raises(DamagedCheckpoint, match=f"block {block} "):
        _read(stream, digests)
    assert stream.closed


def test_short_reads_go_on_where_they_ended(written: Written) -> None:
    path, tensors, digests = written
    stream = _File(path, lambda view, start: os.preadv(stream.fileno(), [view[:100_001]], start))
    read = _read(stream, digests)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_a_file_that_ends_while_it_is_read_is_named(written: Written) -> None:
    path, _tensors, digests = written
    stream = _File(path, lambda _view, start: 0 if start >= 9 * MEGA else None)
    with pytest.raises(DamagedCheckpoint, match=r"file ends at byte \d+"):
        _read(stream, digests)


def test_an_error_of_the_disk_in_another_thread_is_raised_here(written: Written) -> None:
    path, _tensors, digests = written

    def hurt(_view: memoryview, start: int) -> int | None:
        if start >= 9 * MEGA:
            raise OSError(5, "Input/output error")
        return None

    with pytest.raises(OSError, match="Input/output error"):
        _read(_File(path, hurt), digests)


def test_after_an_error_no_thread_reads_any_more(written: Written) -> None:
    path, _tensors, digests = written
    closed: list[bool] = []

    def hurt(_view: memoryview, start: int) -> int | None:
        closed.append(stream.closed)
        if start >= 5 * MEGA:
            raise OSError(5, "Input/output error")
        return None

    stream = _File(path, hurt)
    with pytest.raises(OSError, match="Input/output error"):
        _read(stream, digests)
    count = len(closed)
    time.sleep(0.1)
    assert len(closed) == count
    assert not any(closed)


def test_a_stream_that_reads_in_its_own_way_is_read_in_its_own_way(tmp_path: Path) -> None:
    class Reversed(FileStream):
        def readinto(self, buffer: Any, /) -> int:
            count = super().readinto(buffer)
            buffer[:count] = bytes(buffer[:count])[::-1]
            return count

    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with FileStream(path) as plain, Reversed(path) as other:
        read_at, box = read_at_of(plain), bytearray(2)
        assert read_at is not None
        assert (read_at(memoryview(box), 1), bytes(box)) == (2, b"bc")
        assert plain.read() == b"abc"
        assert read_at_of(other) is None
