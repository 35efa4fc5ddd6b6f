"""weights_hash and state_hash: equal for two runs if and only if they hold the same bits.

Version 2: a hash over the digests of single tensors, so that each can be digested where it lies, by any
thread or rank. Version 1 hashed all bytes as one stream (hashing_v1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import xxhash

from dist_train.checkpoint.format.boxes import Box
from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.hashing_v1 import stream_hash
from dist_train.checkpoint.format.layout import STATE_JSON
from dist_train.checkpoint.format.tensor_bytes import dtype_name

VERSION = 2
# Digested by one thread at a time, so that all have something to do.
_SHARE_BYTES = 16 << 20
_WEIGHTS, _STATE = b"dist-train weights 2\0", b"dist-train state 2\0"
_PARTS = b"dist-train parts 2\0"

# Of each tensor by its name: XXH3-128 of its bytes.
Digests = Mapping[str, bytes]


class Digested(NamedTuple):
    """What the hashes are made of for one tensor; the digest is XXH3-128 of its bytes."""

    dtype: str
    shape: Sequence[int]
    digest: bytes


def weights_hash(state_dict: Mapping[str, torch.Tensor], version: int = VERSION) -> str:
    """Return the hash of an unwrapped `state_dict()`, both names of tied tensors included.

    Entries that are not tensors (a module's extra state) are left out.

    Args:
        state_dict: name -> tensor.
        version: of the manifest whose `weights_hash` it is compared with.
    """
    tensors = {key: value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    if version == 1:
        return stream_hash(tensors)
    return weights_hash_of(digested(tensors, digests_of(byte_views(tensors))))


def weights_hash_of(entries: Mapping[str, Digested]) -> str:
    """Return the `weights_hash` of tensors whose digests are known, by their names."""
    return _combined(_WEIGHTS, entries).hexdigest()


def state_hash(tensors: Mapping[str, torch.Tensor], state_json: bytes) -> str:
    """Return the hash of all tensors of a checkpoint by manifest key, and of state.json."""
    return state_hash_of(digested(tensors, digests_of(byte_views(tensors))), state_json)


def state_hash_of(entries: Mapping[str, Digested], state_json: bytes) -> str:
    """Return the `state_hash` of tensors whose digests are known, by their manifest keys."""
    stream = _combined(_STATE, entries)
    _add(stream, STATE_JSON, Digested("json", (), xxhash.xxh3_128_digest(state_json)))
    return stream.hexdigest()


def digested(tensors: Mapping[str, torch.Tensor], digests: Digests) -> dict[str, Digested]:
    """Join tensors and their digests."""
    return {
        key: Digested(dtype_name(tensor.dtype), tuple(tensor.shape), digests[key])
        for key, tensor in tensors.items()
    }


def digests_of(views: Mapping[str, memoryview]) -> dict[str, bytes]:
    """Digest each tensor's bytes."""
    return {name: xxhash.xxh3_128_digest(view) for name, view in views.items()}


def start_digests(views: Mapping[str, memoryview], threads: HashThreads) -> Callable[[], dict[str, bytes]]:
    """Begin `digests_of` in the threads; return what waits for all of them."""
    begun = [threads.start(partial(digests_of, share)) for share in _shares(views)]
    return lambda: {name: digest for wait in begun for name, digest in wait().items()}


def _shares(views: Mapping[str, memoryview]) -> Iterable[dict[str, memoryview]]:
    share: dict[str, memoryview] = {}
    size = 0
    for name, view in views.items():
        share[name] = view
        size += len(view)
        if size >= _SHARE_BYTES:
            yield share
            share, size = {}, 0
    if share:
        yield share


def digest_of_parts(parts: Mapping[Box, bytes]) -> bytes:
    """Return a digest of a tensor from those of its parts: for `state_hash`, which depends on the cut."""
    stream = xxhash.xxh3_128(_PARTS)
    for box in sorted(parts):
        stream.update(f"{box.offset}{box.shape}\0".encode() + parts[box])
    return stream.digest()


def _combined(mark: bytes, entries: Mapping[str, Digested]) -> xxhash.xxh3_128:
    stream = xxhash.xxh3_128(mark)
    for key in sorted(entries, key=str.encode):
        _add(stream, key, entries[key])
    return stream


def _add(stream: xxhash.xxh3_128, key: str, entry: Digested) -> None:
    # Each part ends in a mark or has a fixed length, so that no two lists of entries have the same bytes.
    dtype, shape, digest = entry
    stream.update(f"{key}\0{dtype}\0{','.join(map(str, shape))}\0".encode() + digest)
