"""Read boxes of sharded tensors: each rank what it needs of every file, block by block, each compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import torch
import xxhash

from dist_train.checkpoint.format.boxes import Box, overlap, tiling_fault, whole
from dist_train.checkpoint.format.byte_stream import ReadAt, read_at_of
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.layout import TENSOR_FILE
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.tensor_bytes import dtype_name, new_tensor
from dist_train.checkpoint.format.tensor_entries import Shard, TensorEntry, part_name
from dist_train.checkpoint.format.tensor_file import PREFIX, Header, read_header
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import block_hashes

# Read by one call: a request to an object store costs as much as some MiB.
_READ_BLOCKS = 16


def files_of_parts(manifest: Manifest) -> frozenset[str]:
    """Return the files that hold parts of tensors; all tensors in them are read as such."""
    return frozenset(
        shard.file for entry in manifest.tensors.values() if not _is_whole(entry) for shard in entry.shards
    )


def _is_whole(entry: TensorEntry) -> bool:
    return len(entry.shards) == 1 and entry.shards[0].shape == entry.shape


def sharded_keys(manifest: Manifest, *, whole_too: bool = False) -> list[str]:
    """Return the manifest keys of the tensors that lie in files of parts.

    Args:
        manifest: of a checkpoint.
        whole_too: return those of all tensors.

    Raises:
        DamagedCheckpoint: the parts of one do not make it whole.
    """
    files = files_of_parts(manifest)
    keys = [
        key
        for key, entry in manifest.tensors.items()
        if whole_too or any(shard.file in files for shard in entry.shards)
    ]
    checked: set[str] = set()
    for key in keys:
        entry = manifest.tensors[key]
        if _is_whole(entry):
            continue
        table = repr((entry.shape, entry.shards))
        if table not in checked and (fault := tiling_fault(entry.shape, map(_box, entry.shards))):
            raise DamagedCheckpoint(f"the parts of tensor '{key}' do not make it whole: {fault}")
        checked.add(table)
    return keys


def _box(shard: Shard) -> Box:
    return Box(tuple(shard.offset), tuple(shard.shape))


@dataclass(frozen=True)
class _OpenFile:
    """One file of parts: its header, which was compared, and where its tensors begin."""

    entry: FileEntry
    digests: list[str]
    header: Header
    starts: Mapping[str, int]


@dataclass
class ShardedReader:
    """Reads parts of a checkpoint's sharded tensors; nothing is kept.

    Args:
        storage: where the checkpoint is.
        name: its name.
        manifest: its manifest.
    """

    storage: CheckpointStorage
    name: str
    manifest: Manifest
    _files: dict[str, _OpenFile] = field(default_factory=dict)

    def read(self, key: str, wanted: Box | None = None) -> torch.Tensor:
        """Read one box of a tensor into new memory; default all of it.

        Raises:
            DamagedCheckpoint: naming the file and block.
        """
        entry = self.manifest.tensors[key]
        box = whole(entry.shape) if wanted is None else wanted
        tensor: torch.Tensor | None = None
        of_file: Counter[str] = Counter()
        for shard in entry.shards:
            of_file[shard.file] += 1
            common = overlap(_box(shard), box)
            if common is None:
                continue
            part = self._read_rows(key, shard, of_file[shard.file] - 1, common)
            if common == box and part.is_contiguous():
                return part
            if tensor is None:
                tensor = torch.empty(box.shape, dtype=part.dtype)
            tensor[common.slices_in(box)] = part
        return torch.empty(box.shape, dtype=self.dtype_of(key)) if tensor is None else tensor

    def dtype_of(self, key: str) -> torch.dtype:
        """Return the type of a tensor's elements."""
        dtype: torch.dtype = getattr(torch, self.manifest.tensors[key].dtype)
        return dtype

    def shape_of(self, key: str) -> Sequence[int]:
        """Return the shape of a whole tensor."""
        return self.manifest.tensors[key].shape

    def _read_rows(self, key: str, shard: Shard, number: int, common: Box) -> torch.Tensor:
        """The common box, of a read of all rows of the part in which it lies, the `number`-th in its file."""
        file = self._open(shard.file)
        plain = part_name(key, number).removeprefix(file.header.metadata.get(PREFIX, ""))
        found = file.header.tensors.get(plain)
        kind = None if found is None else (dtype_name(found[0]), list(found[1]))
        if found is None or kind != (self.manifest.tensors[key].dtype, shard.shape):
            raise DamagedCheckpoint(
                f"{shard.file} does not hold the part of tensor '{key}' that the manifest places there",
                file=shard.file,
            )
        dtype, shape, count = found
        part = _box(shard)
        if not shape:
            tensor, view = new_tensor(shape, dtype)
            self._read_bytes(file, file.starts[plain], view)
            return tensor
        first = common.offset[0] - part.offset[0]
        row_bytes = count // shape[0]
        rows, view = new_tensor((common.shape[0], *shape[1:]), dtype)
        self._read_bytes(file, file.starts[plain] + first * row_bytes, view)
        there = Box((common.offset[0], *part.offset[1:]), tuple(rows.shape))
        return rows[common.slices_in(there)]

    def _open(self, name: str) -> _OpenFile:
        if name not in self._files:
            self._files[name] = self._opened(name)
        return self._files[name]

    def _opened(self, name: str) -> _OpenFile:
        entry = next((entry for entry in self.manifest.files if entry.name == name), None)
        if entry is None or not name.endswith(TENSOR_FILE):
            raise DamagedCheckpoint(f"{name} holds parts of tensors and is not listed", file=name)
        digests = block_hashes(self.storage, self.name, entry)
        bare = _OpenFile(entry, digests, Header({}, {}), {})
        at = 0

        def read_into(view: memoryview) -> None:
            nonlocal at
            self._read_bytes(bare, at, view)
            at += len(view)

        header = read_header(name, entry.bytes, read_into)
        starts, place = {}, at
        for tensor, (_dtype, _shape, count) in header.tensors.items():
            starts[tensor] = place
            place += count
        return _OpenFile(entry, digests, header, starts)

    def _read_bytes(self, file: _OpenFile, start: int, view: memoryview) -> None:
        """Fill a view with a file's bytes from a place on; every block that it touches is compared."""
        with closing(self.storage.open(f"{self.name}/{file.entry.name}")) as stream:
            blocks = _Blocks(file, read_at_of(stream) or self._by_requests(file))
            blocks.read(start, view)

    def _by_requests(self, file: _OpenFile) -> ReadAt:
        key = f"{self.name}/{file.entry.name}"

        def read_at(view: memoryview, place: int) -> int:
            raw = self.storage.read(key, place, len(view))
            view[: len(raw)] = raw
            return len(raw)

        return read_at


class _Blocks:
    """Reads a file block by block.

    Args:
        file: which one.
        read_at: its bytes.
    """

    def __init__(self, file: _OpenFile, read_at: ReadAt) -> None:
        self._file, self._read_at, self._size = file, read_at, file.entry.block_bytes

    def read(self, start: int, view: memoryview) -> None:
        """Fill a view with the bytes from a place on: whole blocks where they belong, others by a copy."""
        size, end = self._size, start + len(view)
        first, last = -(-start // size), end // size
        if first > last:  # within one block
            first = last = end // size + 1
        if start < min(first * size, end):
            self._read_around(start, view[: min(first * size, end) - start])
        for block in range(first, last, _READ_BLOCKS):
            stop = min(block + _READ_BLOCKS, last)
            self._fill(block, view[block * size - start : stop * size - start])
        if first <= last and last * size < end:
            self._read_around(last * size, view[last * size - start :])

    def _read_around(self, start: int, view: memoryview) -> None:
        """A part of one block."""
        block = start // self._size
        begin = block * self._size
        raw = memoryview(bytearray(min(self._size, self._file.entry.bytes - begin)))
        self._fill(block, raw)
        view[:] = raw[start - begin : start - begin + len(view)]

    def _fill(self, first: int, view: memoryview) -> None:
        """Fill a view with whole blocks, and compare each."""
        entry, size, done = self._file.entry, self._size, 0
        while done < len(view):
            count = self._read_at(view[done:], first * size + done)
            if not count:
                raise DamagedCheckpoint(f"{entry.name} ends at byte {first * size + done}", file=entry.name)
            done += count
        for block in range(first, first - (-len(view) // size)):
            piece = view[(block - first) * size : (block - first + 1) * size]
            digests = self._file.digests
            if block >= len(digests) or xxhash.xxh3_128_hexdigest(piece) != digests[block]:
                last = min((block + 1) * size, entry.bytes) - 1
                raise DamagedCheckpoint(
                    f"{entry.name}: block {block} (bytes {block * size} to {last}) does not match its hash",
                    file=entry.name,
                    block=block,
                )


class TensorReader(Protocol):
    """Reads tensors by their keys, each time into new memory."""

    def shape_of(self, key: str) -> Sequence[int]:
        """Return the shape of a whole tensor."""

    def dtype_of(self, key: str) -> torch.dtype:
        """Return the type of a tensor's elements."""

    def read(self, key: str, wanted: Box | None = None) -> torch.Tensor:
        """Read one box of a tensor; default all of it."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is read when it is asked for.

    Args:
        reader: of its checkpoint or file.
        key: its name there.
    """

    reader: TensorReader
    key: str

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor."""
        return torch.Size(self.reader.shape_of(self.key))

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        return self.reader.dtype_of(self.key)

    def is_floating_point(self) -> bool:
        """As torch's."""
        return self.dtype.is_floating_point

    def read(self, box: Box | None = None) -> torch.Tensor:
        """Read one box of it into new memory; default all of it."""
        return self.reader.read(self.key, box)
