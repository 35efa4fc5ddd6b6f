"""Serialize batches, results and models between our own processes: tensors as their plain memory.

torch's own way of passing tensors between processes needs /dev/shm, which is 64 MB in many containers, and
loses the tensors of a dead process. A tensor on a GPU arrives on the CPU.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from dist_train.checkpoint.format.tensor_bytes import host, view_bytes

_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Reduce dense tensors to their memory; leave everything else to pickle."""
        if type(value) not in _KINDS or value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        if value.device.type == "meta":
            return NotImplemented
        memory = pickle.PickleBuffer(view_bytes(host(value)))
        kind = _KINDS.index(type(value))
        return _tensor, (memory, value.dtype, tuple(value.shape), kind, value.requires_grad)


def pack(value: Any) -> memoryview:
    """Return `value` as bytes; raise what pickle raises for what it cannot serialize."""
    box = io.BytesIO()
    _Pickler(box, protocol=5).dump(value)
    return box.getbuffer()


def unpack(payload: bytes) -> Any:
    """Return the value that was packed. Only for bytes from this process's own parent or children."""
    return pickle.loads(payload)


def _tensor(
    memory: bytearray, dtype: torch.dtype, shape: tuple[int, ...], kind: int, grad: bool
) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(dtype) if memory else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    if _KINDS[kind] is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return torch.nn.Buffer(tensor) if kind else tensor
