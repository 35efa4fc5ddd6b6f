"""Large tensors of a checkpoint that is loaded: their bits, their memory, and what becomes of it."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
import os
import pickle
import random
import re
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from dist_train.checkpoint.format import large_pages
from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.hash_threads import hash_threads
from dist_train.checkpoint.format.large_pages import LARGE_BYTES, LargePages
from dist_train.checkpoint.format.tensor_bytes import view_bytes
from dist_train.checkpoint.format.tensor_file import TensorFile, read_tensors
from dist_train.checkpoint.format.verified_reader import VerifiedReader
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.distributed.control_group import Control
from dist_train.jobs.machine import has_large_pages

MEGA = 1 << 20
needs_linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux about its memory")


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


def _large_page_bytes(tensor: torch.Tensor) -> int:
    """Of the mapping in which most of a tensor lies."""
    found = re.search(r"AnonHugePages: +(\d+) kB", _mapped(tensor.data_ptr() + tensor.nbytes // 2))
    assert found is not None
    return int(found[1]) * 1024


def _side_by_side(count: int, size: int) -> list[torch.Tensor]:
    """Tensors in memory that nobody has used, but that an allocator has written before each of them."""
    region = mmap.mmap(-1, count * (size + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flat = torch.frombuffer(region, dtype=torch.uint8)
    for number in range(count):
        flat[number * (size + 64)] = 1
    return [flat[number * (size + 64) + 64 : (number + 1) * (size + 64)] for number in range(count)]


@pytest.fixture
def _large_pages_here() -> None:
    [probe] = _side_by_side(1, 32 * MEGA)
    for start in range(0, probe.nbytes, 4096):
        probe[start] = 1
    madvise, page = ctypes.CDLL(None).madvise, large_pages.PAGE_BYTES
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(-(-probe.data_ptr() // page) * page, 30 * MEGA, 25)
    if _large_page_bytes(probe) < 28 * MEGA:
        pytest.skip("this kernel makes no large pages of memory that is there")


@needs_linux
@pytest.mark.usefixtures("_large_pages_here")
def test_tensors_side_by_side_lie_in_large_pages() -> None:
    tensors = _side_by_side(30, 1_800_000)
    pages = LargePages(tensors)
    for tensor in tensors:
        pages.prepare(tensor)
        tensor.fill_(3)
    assert _large_page_bytes(tensors[15]) > 44 * MEGA
    assert all(bool((tensor == 3).all()) for tensor in tensors)


@needs_linux
@pytest.mark.usefixtures("_large_pages_here")
def test_large_tensors_are_read_into_large_pages() -> None:
    tensors = {f"t{number}": _random(40 * MEGA) for number in range(2)}
    read = _through_a_file(tensors)
    assert all(_large_page_bytes(tensor) > 30 * MEGA for tensor in read.values())
    # Not by advice, which would hold for whatever lies there later.
    assert not any(re.search("VmFlags:.* hg", _mapped(tensor.data_ptr() + MEGA)) for tensor in read.values())
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


class _Placed:
    """As much of a tensor as its place in memory."""

    def __init__(self, start: int, nbytes: int) -> None:
        self.start, self.nbytes = start, nbytes

    def data_ptr(self) -> int:
        return self.start


def test_large_pages_begin_in_one_tensor_each_and_never_reach_beyond_all() -> None:
    page = large_pages.PAGE_BYTES
    far = 100 * page
    places = [
        _Placed(page // 2, page),  # ends in the middle of a page, where the next begins
        _Placed(page // 2 + page + 64, 3 * page),
        _Placed(far + 10, page),  # holds no whole page
        _Placed(2 * far, 2 * page),
        _Placed(3 * far, 1000),  # small
    ]
    random.Random(5).shuffle(places)
    pages = LargePages(cast("list[torch.Tensor]", places))
    found = {place.start: pages.ranges(cast("torch.Tensor", place)) for place in places}
    wanted = [(page, 2 * page), (2 * page, 4 * page), None, (2 * far, 2 * far + 2 * page), None]
    for (start, (first, last)), want in zip(sorted(found.items()), wanted, strict=True):
        assert (first, last) == want if want else first >= last, start


def test_large_pages_keep_what_tensors_hold() -> None:
    tensors = [_random(3 * MEGA) for _ in range(5)]
    kept = [bytes(view_bytes(tensor)) for tensor in tensors]
    pages = LargePages(tensors)
    for tensor in tensors:
        pages.prepare(tensor)
    assert [bytes(view_bytes(tensor)) for tensor in tensors] == kept


@pytest.mark.parametrize(
    ("setting", "wanted"), [("always madvise [never]", False), ("[always]", True), ("", True)]
)
def test_large_pages_that_are_switched_off_stay_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, wanted: bool
) -> None:
    path = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    assert not has_large_pages(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(setting)
    assert has_large_pages(tmp_path) is wanted
    monkeypatch.setattr(large_pages, "has_large_pages", lambda: wanted)
    assert (large_pages._libc_madvise.__wrapped__() is not None) is (wanted and sys.platform == "linux")


@needs_linux
def test_the_memory_of_one_tensor_goes_back_while_its_neighbours_stay() -> None:
    read = _large(3, 40 * MEGA)  # the allocator maps each by itself
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
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), expected)
    assert np.array_equal(tensor.numpy(), expected.numpy())
    written = io.BytesIO()
    torch.save(tensor, written)
    assert written.tell() < tensor.nbytes + 64 * 1024
    written.seek(0)
    assert torch.equal(torch.load(written), expected)
    assert torch.equal(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()), expected)
    if torch.cuda.is_available():
        assert torch.equal(tensor.pin_memory(), expected)
    assert torch.equal(tensor.share_memory_(), expected)


def test_the_storage_of_a_loaded_tensor_can_be_resized() -> None:
    tensor = _large(1)["t0"]
    expected = tensor.clone()
    storage, count = tensor.untyped_storage(), tensor.nbytes
    assert storage.resizable()
    storage.resize_(2 * count)
    assert torch.equal(tensor, expected)
    tensor.resize_(2 * count)
    assert torch.equal(tensor[:count], expected)
    storage.resize_(0)
    assert storage.nbytes() == 0


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


def test_a_save_leaves_the_user_s_storages_resizable(tmp_path: Path) -> None:
    model = torch.nn.Linear(1000, 300)
    CheckpointManager(tmp_path, control=Control()).save(1, {"model": model, "flag": torch.ones(3)})
    storage = model.weight.untyped_storage()
    assert storage.resizable()
    storage.resize_(0)


def test_a_view_of_bytes_keeps_the_memory_alive() -> None:
    count = 40 * MEGA  # the allocator gives it back at once
    view = view_bytes(torch.full((count,), 7, dtype=torch.uint8))
    gc.collect()
    assert (len(view), view.format, view.readonly, view[0], view[count - 1]) == (count, "B", False, 7, 7)
    assert len(view_bytes(torch.empty(0, 5))) == 0
