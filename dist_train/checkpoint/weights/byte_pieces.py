"""Digest weights and write them as safetensors piece by piece: one tensor at most is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import xxhash

from dist_train.checkpoint.format.boxes import Box, whole
from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.hashing import VERSION, Digested, weights_hash_of
from dist_train.checkpoint.format.tensor_bytes import dtype_name, host, view_bytes
from dist_train.checkpoint.format.tensor_file import file_head, refuse_reserved_name, write_order
from dist_train.checkpoint.state.module_state import Stored
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.file_part import naming_file
from dist_train.checkpoint.weights.weight_tensors import WeightTensors

# Read, digested and written at a time.
PIECE_BYTES = 8 << 20


def byte_pieces(tensor: Stored) -> Iterator[memoryview]:
    """Return the bytes of a tensor in their order; of one that is read when asked for, rows at a time."""
    if isinstance(tensor, StoredTensor):
        for box in row_boxes(tensor.shape, tensor.dtype.itemsize):
            # Not to be taken for an error of the file that is written meanwhile.
            with naming_file(tensor.key):
                rows = tensor.read(box)
            yield view_bytes(host(rows))
    else:
        yield view_bytes(host(tensor))


def row_boxes(shape: Sequence[int], itemsize: int) -> Iterable[Box]:
    """Cut a tensor along its first dimension into boxes of at most PIECE_BYTES, or of one row each."""
    everything = whole(shape)
    if not everything.elements:
        return
    if not shape:
        yield everything
        return
    rows, rest = shape[0], tuple(shape[1:])
    step = max(1, PIECE_BYTES * rows // (everything.elements * itemsize))
    for first in range(0, rows, step):
        yield Box((first, *everything.offset[1:]), (min(step, rows - first), *rest))


def size_of(tensor: Stored) -> int:
    """Return the bytes of a whole tensor."""
    return tensor.shape.numel() * tensor.dtype.itemsize


def digest_of(tensor: Stored, then: Callable[[memoryview], None] = lambda _: None) -> Digested:
    """Read a tensor, digest it and hand its bytes on."""
    stream = xxhash.xxh3_128()
    for piece in byte_pieces(tensor):
        stream.update(piece)
        then(piece)
    return Digested(dtype_name(tensor.dtype), tuple(tensor.shape), stream.digest())


def digests_by_name(weights: WeightTensors) -> dict[str, Digested]:
    """Read and digest all weights, tied ones once."""
    aliases = weights.aliases()
    found = {name: digest_of(weights.stored[name]) for name in weights if name not in aliases}
    return found | {second: found[first] for second, first in aliases.items()}


def hash_of_weights(weights: WeightTensors, version: int = VERSION) -> str:
    """Return what `hashing.weights_hash` does, reading tensor by tensor."""
    return _stream_hash(weights) if version == 1 else weights_hash_of(digests_by_name(weights))


def _stream_hash(weights: WeightTensors) -> str:
    """As hashing_v1.stream_hash."""
    stream = xxhash.xxh3_128()
    for name in sorted(weights, key=str.encode):
        tensor = weights.stored[name]
        text = f"{name}\0{dtype_name(tensor.dtype)}\0{','.join(map(str, tensor.shape))}\0"
        stream.update(text.encode() + size_of(tensor).to_bytes(8, "little"))
        for piece in byte_pieces(tensor):
            stream.update(piece)
    return stream.hexdigest()


def write_safetensors(
    write: Write, tensors: Mapping[str, Stored], metadata: Mapping[str, str]
) -> dict[str, Digested]:
    """Pass the bytes of one safetensors file to `write`; return the digest of each tensor that was written.

    Raises:
        CheckpointError: a tensor is called as the format calls its metadata.
    """
    refuse_reserved_name(tensors)
    ordered = {name: tensors[name] for name in write_order(tensors)}
    head, _size = file_head(ordered, {name: size_of(one) for name, one in ordered.items()}, metadata)
    write(memoryview(head))
    return {name: digest_of(one, write) for name, one in ordered.items()}
