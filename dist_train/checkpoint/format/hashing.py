"""weights_hash and state_hash: equal for two runs if and only if they hold the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import xxhash

from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.layout import STATE_JSON
from dist_train.checkpoint.format.tensor_bytes import dtype_name


def weights_hash(
    state_dict: Mapping[str, torch.Tensor], views: Mapping[str, memoryview] | None = None
) -> str:
    """Return XXH3-128 over an unwrapped `state_dict()`, both names of tied tensors included.

    Entries that are not tensors (a module's extra state) are left out. `views`: as for `tensors_stream`.
    """
    tensors = {key: value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    stream = xxhash.xxh3_128()
    _add_tensors(stream, tensors, views)
    return stream.hexdigest()


def state_hash(tensors: Mapping[str, torch.Tensor], state_json: bytes) -> str:
    """Return XXH3-128 over all tensors of a checkpoint, then state.json as one more entry of dtype `json`."""
    return with_state_json(tensors_stream(tensors), state_json)


def tensors_stream(
    tensors: Mapping[str, torch.Tensor], views: Mapping[str, memoryview] | None = None
) -> xxhash.xxh3_128:
    """The first part of `state_hash`, which takes its time; `with_state_json` is the rest.

    Args:
        tensors: by manifest key.
        views: the bytes of the tensors, where the caller has them already.
    """
    stream = xxhash.xxh3_128()
    _add_tensors(stream, tensors, views)
    return stream


def with_state_json(stream: xxhash.xxh3_128, state_json: bytes) -> str:
    """Return the `state_hash` of the tensors that `tensors_stream` was given."""
    _add_header(stream, STATE_JSON, "json", (), len(state_json))
    stream.update(state_json)
    return stream.hexdigest()


def _add_tensors(
    stream: xxhash.xxh3_128,
    tensors: Mapping[str, torch.Tensor],
    views: Mapping[str, memoryview] | None,
) -> None:
    known = byte_views(tensors) if views is None else views
    for key in sorted(tensors, key=str.encode):
        tensor, view = tensors[key], known[key]
        _add_header(stream, key, dtype_name(tensor.dtype), tensor.shape, len(view))
        stream.update(view)


def _add_header(stream: xxhash.xxh3_128, key: str, dtype: str, shape: Sequence[int], count: int) -> None:
    # Each part ends in a mark or has a fixed length, so that no two lists of entries have the same bytes.
    text = f"{key}\0{dtype}\0{','.join(map(str, shape))}\0"
    stream.update(text.encode() + count.to_bytes(8, "little"))
