"""What each rank holds for itself, brought to rank 0: random streams, buffers that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.memory import code_of, dtype_of, host, new_tensor, view_bytes
from dist_train.checkpoint.rng import capture_rng
from dist_train.checkpoint.state import Collected

if TYPE_CHECKING:
    from dist_train.distributed.control import Control


def own_tensors(found: Collected, rank: int, differing: frozenset[str]) -> dict[str, torch.Tensor]:
    """This rank's tensors: `rng/<name>`, and `buffer/<name>` where rank 0's copy will not do."""
    own = {f"rng/{name}": stream for name, stream in capture_rng().items()}
    for name, tensor in found.local_buffers.items():
        # Outside any state_dict, so rank 0's copy has no other place.
        if rank == 0 or name in differing:
            own[f"buffer/{name}"] = host(tensor)
    if rank > 0:
        tensors = found.tensors
        own |= {f"buffer/{n}": host(tensors[key]) for key, n in found.buffers.items() if n in differing}
    return own


def gather_per_rank(control: Control, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All ranks' tensors as `rank<r>/<name>` (collective; only rank 0 uses the result)."""
    everything: dict[str, torch.Tensor] = {}
    for rank, payload in enumerate(control.all_gather_bytes(_pack(own))):
        if control.is_main:
            everything |= {f"rank{rank}/{name}": tensor for name, tensor in _unpack(payload).items()}
    return everything


def _pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    head = [[name, code_of(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(view_bytes(host(t)) for t in tensors.values())])


def _unpack(payload: bytes) -> dict[str, torch.Tensor]:
    start = 8 + int.from_bytes(payload[:8], "little")
    tensors = {}
    for name, code, shape in json.loads(payload[8:start]):
        tensors[name], view = new_tensor(shape, dtype_of(code))
        view[:] = payload[start : start + len(view)]
        start += len(view)
    return tensors
