"""Open a directory of torch.distributed.checkpoint (DCP) without pickle; chunks are read when asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_train.checkpoint.format.boxes import Box, overlap, whole
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.dcp_metadata import METADATA, Chunk, DcpMetadata, Place, read_metadata
from dist_train.checkpoint.weights.file_part import naming_file, open_part
from dist_train.checkpoint.weights.safetensors_file import SafetensorsReader, open_safetensors
from dist_train.checkpoint.weights.torch_file import read_torch_stream

_ZIP = b"PK\x03\x04"
# In the header of a safetensors file of DCP: tensor -> where its chunk begins.
_SHARDING, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


@dataclass(frozen=True)
class StoredObject:
    """What is no tensor, and is read when it is asked for.

    Args:
        folder: the DCP directory.
        place: where it lies.
    """

    folder: Path
    place: Place

    def read(self) -> object:
        """Read it; nothing is unpickled but tensors and plain values.

        Raises:
            CheckpointError: it needs pickle, or is damaged.
        """
        path = self.folder / self.place.file
        with naming_file(path), open_part(path, self.place.offset, self.place.length) as file:
            return read_torch_stream(file, path)


@dataclass(eq=False)
class DcpReader:
    """Reads tensors of a DCP directory; the chunks that the last box touched are kept.

    Args:
        folder: the directory.
        metadata: of it.
    """

    folder: Path
    metadata: DcpMetadata
    _kept: dict[tuple[str, Box], torch.Tensor] = field(default_factory=dict)
    _files: dict[tuple[str, int], SafetensorsReader] = field(default_factory=dict)

    def shape_of(self, key: str) -> Sequence[int]:
        """Return the shape of a whole tensor."""
        return self.metadata.tensors[key].shape

    def dtype_of(self, key: str) -> torch.dtype:
        """Return the type of a tensor's elements."""
        return self.metadata.tensors[key].dtype

    def read(self, key: str, wanted: Box | None = None) -> torch.Tensor:
        """Read one box of a tensor; default all of it.

        Raises:
            DamagedCheckpoint: a chunk is not what the metadata says, naming its file.
            CheckpointError: it needs pickle.
        """
        entry = self.metadata.tensors[key]
        everything = whole(entry.shape)
        box = everything if wanted is None else wanted
        touched = [chunk for chunk in entry.chunks if overlap(chunk.box, box) is not None]
        if box == everything and [chunk.box for chunk in touched] == [box]:
            return self._read(key, touched[0])
        names = {(key, chunk.box) for chunk in touched}
        self._kept = {name: values for name, values in self._kept.items() if name in names}
        tensor = torch.empty(box.shape, dtype=entry.dtype)
        for chunk in touched:
            common = overlap(chunk.box, box)
            assert common is not None
            values = self._values(key, chunk, keep=box != everything)
            tensor[common.slices_in(box)] = values[common.slices_in(chunk.box)]
        return tensor

    def _values(self, key: str, chunk: Chunk, keep: bool) -> torch.Tensor:
        name = (key, chunk.box)
        if name in self._kept:
            return self._kept[name]
        values = self._read(key, chunk)
        if keep:
            self._kept[name] = values
        return values

    def _read(self, key: str, chunk: Chunk) -> torch.Tensor:
        dtype, path, place = self.dtype_of(key), self.folder / chunk.place.file, chunk.place
        if chunk.box.elements * dtype.itemsize > place.length:
            raise _wrong(path, key, f"{place.length} bytes are too few for {list(chunk.box.shape)}")
        with naming_file(path), open_part(path, place.offset, place.length) as file:
            head = file.read(16)
            file.seek(0)
            found = read_torch_stream(file, path) if head.startswith(_ZIP) else None
        if found is None:
            found = self._from_safetensors(key, chunk)
        is_plain = type(found) in (torch.Tensor, torch.nn.Parameter)
        if not isinstance(found, torch.Tensor) or not is_plain or found.layout != torch.strided:
            raise _wrong(path, key, f"it is a {type(found).__name__}, not a dense tensor")
        if (found.dtype, tuple(found.shape)) != (dtype, chunk.box.shape):
            raise _wrong(
                path,
                key,
                f"it is {dtype_name(found.dtype)} {list(found.shape)}, "
                f"not {dtype_name(dtype)} {list(chunk.box.shape)}",
            )
        return found.detach()

    def _from_safetensors(self, key: str, chunk: Chunk) -> torch.Tensor:
        """Of a rank's file all tensors are one safetensors file, after what is no tensor."""
        path, start = self.folder / chunk.place.file, chunk.place.offset
        reader = self._files.get((chunk.place.file, start))
        if reader is None:
            reader = self._files[chunk.place.file, start] = open_safetensors(path, start)
        if key not in reader.header.tensors:
            raise _wrong(path, key, "it is not there")
        # Of several chunks of one tensor, this format keeps the last one.
        if _saved_offsets(reader, key) != list(chunk.box.offset):
            raise _wrong(path, key, f"another chunk is there, from {_saved_offsets(reader, key)} on")
        return reader.read(key)


def _saved_offsets(reader: SafetensorsReader, key: str) -> object:
    try:
        return json.loads(reader.header.metadata.get(_SHARDING, ""))[key][_OFFSETS]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _wrong(path: Path, key: str, why: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"{path} does not hold the chunk of tensor '{key}' that {METADATA} places there: {why}",
        file=path.name,
    )


def open_dcp(folder: Path) -> dict[str, Any]:
    """Return the record that was saved: dicts, with a StoredTensor or a StoredObject at each end.

    Raises:
        CheckpointError: its metadata needs pickle.
        DamagedCheckpoint: a file is missing or cut short, or the chunks of a tensor do not make it whole.
    """
    metadata = read_metadata(folder / METADATA)
    chunks = [chunk.place for tensor in metadata.tensors.values() for chunk in tensor.chunks]
    _check_files(folder, [*chunks, *metadata.objects.values()])
    reader = DcpReader(folder, metadata)
    ends: dict[str, StoredTensor | StoredObject] = {
        key: StoredTensor(reader, key) for key in metadata.tensors
    }
    ends |= {key: StoredObject(folder, place) for key, place in metadata.objects.items()}
    record: dict[Any, Any] = {}
    for key, end in ends.items():
        *parts, last = metadata.paths.get(key, (key,))
        inner = record
        for part in parts:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise _clash(folder, key)
        if last in inner:
            raise _clash(folder, key)
        inner[last] = end
    return record


def _clash(folder: Path, key: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"{folder / METADATA}: two entries are to stand in one place: '{key}' and another", file=METADATA
    )


def _check_files(folder: Path, places: Sequence[Place]) -> None:
    ends: dict[str, int] = {}
    for place in places:
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
    for name, end in sorted(ends.items()):
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpoint(f"{path} is missing: {METADATA} names it", file=name)
        size = path.stat().st_size
        if size < end:
            raise DamagedCheckpoint(
                f"{path} is cut short: it has {size} bytes, and {METADATA} places data up to byte {end}",
                file=name,
            )


def read_objects(found: Mapping[str, Any]) -> dict[str, Any]:
    """Read what is no tensor in a state dict."""
    return {name: one.read() if isinstance(one, StoredObject) else one for name, one in found.items()}
