"""Write and read safetensors files as streams: hashed on the way, with no second copy in memory."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import torch

from dist_train.checkpoint.format.blocks import BLOCK_BYTES, chunks_of, hash_views
from dist_train.checkpoint.format.byte_stream import ByteStream, Write
from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.tensor_bytes import code_of, dtype_of
from dist_train.checkpoint.format.tensor_memory import OwnMemory, ReadInto, TensorMemory
from dist_train.checkpoint.format.verified_reader import VerifiedReader
from dist_train.errors import CheckpointError
from dist_train.jobs.frozen_imports import without_collector

ALIGN = 8
# The entry of a header that is no tensor.
METADATA = "__metadata__"
# In the header's metadata: which tensors of pairs are complex numbers.
COMPLEX128 = "__complex128__"
# In the header's metadata: what the manifest keys of the tensors begin with, besides their names in the file.
PREFIX = "prefix"
# safetensors itself refuses longer headers.
MAX_HEADER = 100_000_000
# Hashed in one thread and written in one call, while it is still in the processor's cache.
CHUNK_BYTES = 4 * BLOCK_BYTES
# Smaller ones are joined for one write. A copy of large ones would be in new memory each time, whose first
# use takes longer than the write.
LARGE_BYTES = 128 << 10


@dataclass(frozen=True)
class Header:
    """The head of a safetensors file: its metadata, and its tensors in the order of their bytes."""

    metadata: dict[str, str]
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...], int]]


class Described(Protocol):
    """What a header says of a tensor, besides its place."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor."""


def write_order(tensors: Mapping[str, Described]) -> list[str]:
    """Return the names in the order of their bytes: wide elements first, so that every tensor is aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def file_head(
    tensors: Mapping[str, Described], sizes: Mapping[str, int], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """Make the head of a safetensors file.

    Args:
        tensors: in the order of their bytes.
        sizes: the bytes of each.
        metadata: text pairs.

    Returns:
        The head, and the size of the whole file.
    """
    # safetensors has no complex128: its numbers are stored as pairs, and the header says whose.
    pairs = sorted(name for name in tensors if tensors[name].dtype == torch.complex128)
    metadata = {**metadata, **({COMPLEX128: json.dumps(pairs)} if pairs else {})}
    head: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + sizes[name]
        as_pairs = tensor.dtype == torch.complex128
        head[name] = {
            "dtype": code_of(torch.float64 if as_pairs else tensor.dtype),
            "shape": [*tensor.shape, *([2] if as_pairs else [])],
            "data_offsets": [start, end],
        }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)
    raw = len(text).to_bytes(8, "little") + text
    return raw, len(raw) + end


class TensorFile:
    """The bytes of one safetensors file; its size is known before any is written.

    Args:
        tensors: name -> `host` tensor.
        metadata: text pairs for the header.
        views: the bytes of the tensors, where the caller has them already.
        in_use: another thread or process may write to the tensors meanwhile: a copy of each chunk is hashed
            and written, so that the file is whole, with each value as it was at some moment.

    Raises:
        CheckpointError: a tensor is called as the format calls its metadata.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        metadata: Mapping[str, str],
        views: Mapping[str, memoryview] | None = None,
        in_use: bool = False,
    ) -> None:
        refuse_reserved_name(tensors)
        self._in_use = in_use
        known = byte_views(tensors) if views is None else views
        ordered = {name: tensors[name] for name in write_order(tensors)}
        self._views = [known[name] for name in ordered]
        self._head, self.bytes = file_head(ordered, {name: len(known[name]) for name in ordered}, metadata)

    def write(
        self, write: Write, threads: HashThreads | None = None, then: Callable[[], None] = lambda: None
    ) -> list[str]:
        """Pass all bytes to `write`, in order; return the block hashes, taken before each write.

        Args:
            write: called in this thread only.
            threads: hash what comes next meanwhile.
            then: called when they have been given all of it: other work for them.
        """
        others = threads or HashThreads()
        digests: list[str] = []
        begun: deque[tuple[list[memoryview], Callable[[], list[str]]]] = deque()
        for chunk in chunks_of([memoryview(self._head), *self._views], CHUNK_BYTES):
            if self._in_use:
                chunk = [memoryview(b"".join(chunk))]
            begun.append((chunk, others.start(partial(hash_views, chunk))))
            if len(begun) > 2 * others.count:
                _write_hashed(write, digests, *begun.popleft())
        then()
        while begun:
            _write_hashed(write, digests, *begun.popleft())
        return digests


def refuse_reserved_name(names: Container[str], of: str = "") -> None:
    """Refuse a tensor that a safetensors file cannot hold under its name.

    Args:
        names: of the tensors.
        of: what they begin with, in `names`.

    Raises:
        CheckpointError: naming it.
    """
    if of + METADATA in names:
        raise CheckpointError(
            f"a tensor is called '{of}{METADATA}'",
            cause=f"safetensors files call their own metadata {METADATA}",
            hint="rename it in state_dict() and back in load_state_dict()",
        )


def _write_hashed(
    write: Write, digests: list[str], chunk: list[memoryview], wait: Callable[[], list[str]]
) -> None:
    digests += wait()
    for large, views in groupby(chunk, lambda view: len(view) >= LARGE_BYTES):
        if large:
            for view in views:
                write(view)
        else:
            write(memoryview(b"".join(views)))


def read_tensors(
    reader: VerifiedReader, memory: TensorMemory | None = None
) -> tuple[Header, dict[str, torch.Tensor]]:
    """Read every tensor into `memory`; default new memory of this process.

    Raises:
        DamagedCheckpoint: the file is not a safetensors file, or a block does not match.
    """
    header = read_header(reader.name, reader.size, reader.read_into)
    tensors = _fill(header, reader.read_later, memory or OwnMemory())
    reader.finish()
    return header, tensors


def read_unverified(stream: ByteStream, name: str) -> tuple[Header, dict[str, torch.Tensor]]:
    """The same for a file without block hashes, such as one that another tool wrote."""

    def read_into(target: memoryview) -> None:
        start = 0
        while start < len(target):
            count = stream.readinto(target[start:])
            if not count:
                raise DamagedCheckpoint(f"{name} is cut short", file=name)
            start += count

    header = read_header(name, stream.size, read_into)
    return header, _fill(header, read_into, OwnMemory())


@without_collector()
def _fill(header: Header, read_into: ReadInto, memory: TensorMemory) -> dict[str, torch.Tensor]:
    kinds = [(dtype, shape) for dtype, shape, _count in header.tensors.values()]
    return dict(zip(header.tensors, memory.fill(kinds, read_into), strict=True))


def read_header(name: str, size: int, read_into: Callable[[memoryview], None]) -> Header:
    """Read the head of a file of `size` bytes, of which `read_into` gives the next ones.

    Raises:
        DamagedCheckpoint: it is not a safetensors file.
    """
    length_box = bytearray(8)
    if size < len(length_box):
        raise _malformed(name, f"{size} bytes are too few")
    read_into(memoryview(length_box))
    length = int.from_bytes(length_box, "little")
    if length > min(size - len(length_box), MAX_HEADER):
        raise _malformed(name, f"its header claims to have {length} bytes")
    text = bytearray(length)
    read_into(memoryview(text))
    try:
        header, end = _parse_header(bytes(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed(name, f"its header cannot be read: {error}") from error
    if 8 + length + end != size:
        raise _malformed(name, f"its header accounts for {8 + length + end} of {size} bytes")
    return header


@without_collector()
def _parse_header(text: bytes) -> tuple[Header, int]:
    head = json.loads(text.decode())
    metadata = {str(key): str(value) for key, value in head.pop(METADATA, {}).items()}
    tensors = {}
    end = 0
    for name, entry in sorted(head.items(), key=lambda item: (item[1]["data_offsets"], item[0])):
        start, stop = entry["data_offsets"]
        dtype, shape = dtype_of(entry["dtype"]), tuple(int(length) for length in entry["shape"])
        count = dtype.itemsize
        for length in shape:
            count *= length
        if start != end or stop - start != count or count < 0:
            raise ValueError(f"the place of tensor '{name}' does not fit its shape")
        tensors[name] = (dtype, shape, count)
        end = stop
    for name in json.loads(metadata.get(COMPLEX128, "[]")):
        dtype, shape, count = tensors[name]
        if dtype != torch.float64 or shape[-1:] != (2,):
            raise ValueError(f"tensor '{name}' holds no pairs of float64")
        tensors[name] = (torch.complex128, shape[:-1], count)
    return Header(metadata, tensors), end


def _malformed(name: str, why: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{name} is not a safetensors file: {why}", file=name)
