"""Read safetensors files that other tools may have written: whole, or box by box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dist_train.checkpoint.format.boxes import Box, whole
from dist_train.checkpoint.format.byte_stream import ByteStream
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_file import Header, read_header, read_unverified
from dist_train.checkpoint.format.tensor_memory import OwnMemory
from dist_train.checkpoint.store.file import FileStream
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.file_part import naming_file

# Keys of a header's metadata that are not second names of tensors.
_NOT_ALIASES = ("format", "prefix")


def read_safetensors(path: Path) -> tuple[Header, dict[str, torch.Tensor]]:
    """Read the header and every tensor.

    Raises:
        DamagedCheckpoint: it is not a safetensors file, or cut short.
    """
    with FileStream(path) as stream:
        return read_unverified(stream, path.name)


@dataclass(frozen=True, eq=False)
class SafetensorsReader:
    """Reads the tensors of one safetensors file when they are asked for.

    Args:
        path: the file.
        header: of it.
        starts: where each tensor begins in the file.
    """

    path: Path
    header: Header
    starts: Mapping[str, int]

    def shape_of(self, key: str) -> Sequence[int]:
        """Return the shape of a tensor."""
        return self.header.tensors[key][1]

    def dtype_of(self, key: str) -> torch.dtype:
        """Return the type of a tensor's elements."""
        return self.header.tensors[key][0]

    def read(self, key: str, wanted: Box | None = None) -> torch.Tensor:
        """Read one box of a tensor; default all of it.

        Raises:
            DamagedCheckpoint: the file has become shorter.
        """
        dtype, shape, count = self.header.tensors[key]
        box, start = whole(shape) if wanted is None else wanted, self.starts[key]
        if not box.elements:
            return torch.empty(box.shape, dtype=dtype)
        rows = Box((), ())
        if shape:
            start += box.offset[0] * (count // shape[0])
            rows = Box((box.offset[0], *(0 for _ in shape[1:])), (box.shape[0], *shape[1:]))
        with naming_file(self.path), FileStream(self.path) as stream:
            stream.seek(start)
            (tensor,) = OwnMemory().fill([(dtype, rows.shape)], lambda view: _fill(stream, view, self.path))
        return tensor if rows == box else tensor[box.slices_in(rows)]

    def stored(self) -> dict[str, StoredTensor]:
        """Return what reads each tensor, by its name."""
        return {key: StoredTensor(self, key) for key in self.header.tensors}


def _fill(stream: ByteStream, view: memoryview, path: Path) -> None:
    at = 0
    while at < len(view):
        count = stream.readinto(view[at:])
        if not count:
            raise DamagedCheckpoint(f"{path} is cut short", file=path.name)
        at += count


def open_safetensors(path: Path, start: int = 0) -> SafetensorsReader:
    """Read the header.

    Args:
        path: the file.
        start: the byte at which it begins in a larger file, of which it is the end.

    Raises:
        DamagedCheckpoint: it is not a safetensors file, or cut short.
    """
    with naming_file(path), FileStream(path) as stream:
        stream.seek(start)
        size = max(0, stream.size - start)
        header = read_header(str(path), size, lambda view: _fill(stream, view, path))
        at = stream.tell()
    starts = {}
    for key, (_dtype, _shape, count) in header.tensors.items():
        starts[key] = at
        at += count
    return SafetensorsReader(path, header, starts)


def second_names(metadata: Mapping[str, str], names: Mapping[str, object]) -> dict[str, str]:
    """Return second name -> first name of the tied tensors that a header's metadata names.

    Args:
        metadata: of the header.
        names: of the tensors that are there.
    """
    return {
        second: first
        for second, first in metadata.items()
        if second not in _NOT_ALIASES and second not in names and first in names
    }
