"""Batches, results and models as bytes between our own processes: tensors go as their plain memory.

torch's own way to pass tensors between processes needs /dev/shm, which is 64 MB in many containers, and
loses what a dead process held. A tensor on a GPU arrives on the CPU.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from dist_train.checkpoint.memory import host, view_bytes

_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Dense tensors as memory; everything else as pickle does it."""
        if type(value) not in _KINDS or value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        if value.device.type == "meta":
            return NotImplemented
        memory = pickle.PickleBuffer(view_bytes(host(value)))
        kind = _KINDS.index(type(value))
        return _tensor, (memory, value.dtype, tuple(value.shape), kind, value.requires_grad)


def pack(value: Any) -> memoryview:
    """`value` as bytes; raises what pickle raises for what it cannot take."""
    box = io.BytesIO()
    _Pickler(box, protocol=5).dump(value)
    return box.getbuffer()


def unpack(parcel: bytes) -> Any:
    """The value again. Only for bytes from a process that this one has started, or was started by."""
    return pickle.loads(parcel)


def _tensor(
    memory: bytearray, dtype: torch.dtype, shape: tuple[int, ...], kind: int, grad: bool
) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype) if memory else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if _KINDS[kind] is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return torch.nn.Buffer(tensor) if kind else tensor
