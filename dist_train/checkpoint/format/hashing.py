"""weights_hash and state_hash: equal for two runs if and only if they hold the same bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import xxhash

from dist_train.checkpoint.format.layout import STATE_JSON
from dist_train.checkpoint.format.tensor_bytes import dtype_name, host, view_bytes


def weights_hash(state_dict: Mapping[str, torch.Tensor]) -> str:
    """Return XXH3-128 over an unwrapped `state_dict()`, both names of tied tensors included.

    Entries that are not tensors (a module's extra state) are left out.
    """
    stream = xxhash.xxh3_128()
    _add_tensors(stream, {key: value for key, value in state_dict.items() if isinstance(value, torch.Tensor)})
    return stream.hexdigest()


def state_hash(tensors: Mapping[str, torch.Tensor], state_json: bytes) -> str:
    """Return XXH3-128 over all tensors of a checkpoint, then state.json as one more entry of dtype `json`."""
    stream = xxhash.xxh3_128()
    _add_tensors(stream, tensors)
    _add_header(stream, STATE_JSON, "json", (), len(state_json))
    stream.update(state_json)
    return stream.hexdigest()


def _add_tensors(stream: xxhash.xxh3_128, tensors: Mapping[str, torch.Tensor]) -> None:
    for key in sorted(tensors, key=lambda name: name.encode()):
        tensor = tensors[key]
        view = view_bytes(host(tensor))
        _add_header(stream, key, dtype_name(tensor.dtype), tensor.shape, len(view))
        stream.update(view)


def _add_header(stream: xxhash.xxh3_128, key: str, dtype: str, shape: Sequence[int], count: int) -> None:
    # Each part ends in a mark or has a fixed length, so that no two lists of entries have the same bytes.
    text = f"{key}\0{dtype}\0{','.join(map(str, shape))}\0"
    stream.update(text.encode() + count.to_bytes(8, "little"))
