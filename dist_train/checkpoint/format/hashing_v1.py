"""The weights_hash of version 1, to check old checkpoints: all tensors' bytes as one stream."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import xxhash

from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.tensor_bytes import dtype_name


def stream_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return version 1's `weights_hash` of these tensors."""
    stream, views = xxhash.xxh3_128(), byte_views(tensors)
    for key in sorted(tensors, key=str.encode):
        tensor, view = tensors[key], views[key]
        text = f"{key}\0{dtype_name(tensor.dtype)}\0{','.join(map(str, tensor.shape))}\0"
        stream.update(text.encode() + len(view).to_bytes(8, "little"))
        stream.update(view)
    return stream.hexdigest()
