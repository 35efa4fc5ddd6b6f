"""Large tensors of a checkpoint that is loaded: their bits, their memory, and what becomes of it."""

from __future__ import annotations

import copy
import io
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dist_train.checkpoint.format import large_regions
from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.hash_threads import HashThreads, hash_threads
from dist_train.checkpoint.format.large_regions import LARGE_BYTES, LargeRegions
from dist_train.checkpoint.format.tensor_bytes import view_bytes
from dist_train.checkpoint.format.tensor_file import TensorFile, read_tensors
from dist_train.checkpoint.format.verified_reader import VerifiedReader

MEGA = 1 << 20
needs_linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux about its memory")
needs_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="a kernel without large pages"
)


class _Stream(io.BytesIO):
    @property
    def size(self) -> int:
        return len(self.getbuffer())


def _through_a_file(tensors: dict[str, torch.Tensor], data_bytes: int = 1 << 30) -> dict[str, torch.Tensor]:
    raw = bytearray()
    write: Write = raw.extend  # type: ignore[assignment]
    file = TensorFile(tensors, {})
    digests = file.write(write)
    with (
        hash_threads(data_bytes) as threads,
        VerifiedReader(_Stream(raw), "file", len(raw), digests, threads=threads) as reader,
    ):
        return read_tensors(reader)[1]


def _random(count: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(os.urandom(count)), dtype=np.uint8))


def _mapped(address: int) -> str:
    """What the kernel says of the memory at an address; empty where none is mapped."""
    for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", block):
            first, last = (int(part, 16) for part in found.groups())
            if first <= address < last:
                return block
    return ""


def _large(amount: int = 3, count: int = 3 * MEGA + 12_345) -> dict[str, torch.Tensor]:
    return _through_a_file({f"t{number}": _random(count) for number in range(amount)})


@pytest.mark.parametrize("data_bytes", [0, 1 << 30])  # without and with other threads
def test_every_size_and_type_has_its_bits(data_bytes: int) -> None:
    tensors = {
        f"bytes {count}": _random(count)
        for count in (
            0,
            1,
            LARGE_BYTES - 1,
            LARGE_BYTES,
            LARGE_BYTES + 1,
            8 * MEGA - 1,
            8 * MEGA + 1,
            17 * MEGA,
        )
    }
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.complex64, torch.float8_e4m3fn):
        tensors[str(dtype)] = _random(2 * MEGA).view(dtype).view(2, -1, 4)
    tensors["bool"] = _random(MEGA) > 127
    tensors["complex128"] = torch.randn(200_000, dtype=torch.complex128)
    read = _through_a_file(tensors, data_bytes)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape), name
        assert view_bytes(read[name]) == view_bytes(tensor), name


@needs_linux
@needs_large_pages
def test_large_tensors_lie_side_by_side_in_large_pages() -> None:
    read = _large()
    blocks = {_mapped(tensor.data_ptr()) for tensor in read.values()}
    assert len(blocks) == 1
    flags = re.search(r"VmFlags:(.*)", blocks.pop())
    assert flags is not None
    assert "hg" in flags[1].split()


@needs_linux
def test_the_memory_of_one_tensor_goes_back_while_its_neighbours_stay() -> None:
    read = _large()
    kept = {name: tensor.clone() for name, tensor in read.items()}
    address = read["t1"].data_ptr()
    assert _mapped(address)
    del read["t1"]
    assert not _mapped(address)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in read.items())


def test_a_loaded_tensor_is_like_one_of_torch_s_own() -> None:
    tensor = _large(2)["t0"]
    expected = tensor.clone()
    assert not tensor._is_view()
    assert tensor.is_contiguous()
    assert tensor.storage_offset() == 0
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert torch.equal(copy.deepcopy(tensor), expected)
    written = io.BytesIO()
    torch.save(tensor, written)
    assert written.tell() < tensor.nbytes + 64 * 1024
    written.seek(0)
    assert torch.equal(torch.load(written), expected)
    assert torch.equal(tensor.share_memory_(), expected)


def test_a_forked_process_changes_its_own_copy() -> None:
    tensor = _large(1)["t0"]
    tensor[0] = 1
    expected = tensor.clone()
    child = os.fork()
    if child == 0:
        tensor[:8].fill_(0)  # few enough for one thread: torch's others are not forked
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(tensor, expected)


def test_where_no_memory_is_mapped_torch_s_allocator_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": _random(3 * MEGA), "b": _random(LARGE_BYTES)}

    def refuses(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(large_regions.mmap, "mmap", refuses)
    read = _through_a_file(tensors)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


class _Recorder(HashThreads):
    """Does what it is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 1

    def start(self, work: Callable[[], object]) -> Callable[[], object]:  # type: ignore[override]
        work()
        return lambda: None


@needs_linux
def test_memory_is_made_ready_ahead_of_what_is_read_and_not_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready: list[int] = []
    monkeypatch.setattr(large_regions, "_populate", lambda _region, _start, count: ready.append(count))
    sizes = [5 * MEGA, 100, 70 * MEGA, 9 * MEGA]
    regions = LargeRegions(sizes, _Recorder())
    filled = 0
    for size in (size for size in sizes if size >= LARGE_BYTES):
        region = regions.take()
        assert region is not None
        assert len(region) == size
        for piece in large_regions.pieces_of(memoryview(region)):
            regions.begin_ahead(len(piece))
            filled += len(piece)
            assert filled <= sum(ready) <= filled + 40 * MEGA
    assert sum(ready) == filled == 84 * MEGA


@needs_linux
def test_a_page_that_is_made_ready_is_no_fault_later() -> None:
    region = large_regions._new_region(4 * MEGA)
    assert region is not None
    tensor = large_regions.tensor_in(region, torch.uint8, (4 * MEGA,))
    large_regions._populate(region, MEGA, 2 * MEGA)
    resident = re.search(r"Rss: +(\d+) kB", _mapped(tensor.data_ptr() + MEGA))
    assert resident is not None
    assert int(resident[1]) >= 2048
