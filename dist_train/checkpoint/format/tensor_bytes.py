"""Views of tensors as bytes: what is hashed, written and read is the memory itself."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from dist_train.distributed.parameter_shards import is_sharded
from dist_train.errors import CheckpointError

# safetensors' names for torch's element types.
_CODES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    # Not one of safetensors': a file holds it as pairs of F64, see tensor_file.
    "C128": torch.complex128,
}
_NAMES = {dtype: code for code, dtype in _CODES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def code_of(dtype: torch.dtype) -> str:
    """Return safetensors' name of an element type that `check_storable` has accepted."""
    return _NAMES[dtype]


def dtype_of(code: str) -> torch.dtype:
    """Return the element type of a safetensors name; KeyError if there is none."""
    return _CODES[code]


def check_storable(key: str, tensor: torch.Tensor) -> None:
    """Refuse what cannot be written as one plain block of numbers.

    Raises:
        CheckpointError: naming the tensor and what it is.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise CheckpointError(f"'{key}' has no shape yet", hint="run one forward before the first save")
    if is_sharded(tensor):
        if any(placement.is_partial() for placement in tensor.placements):
            raise CheckpointError(f"'{key}' is not added up over the ranks yet ({tensor.placements})")
        tensor = tensor.to_local()
    kind = type(tensor)
    plain = kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    # One on the device meta may be another rank's; a save asks all of them.
    if not plain or tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(
            f"'{key}' is a {kind.__name__} ({tensor.layout}, {tensor.device.type}), which cannot be stored",
            hint="only dense tensors are stored; convert it in the object's state_dict()",
        )
    if tensor.dtype not in _NAMES:
        raise CheckpointError(
            f"'{key}' has dtype {dtype_name(tensor.dtype)}, which safetensors does not know"
        )


def host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in host memory, contiguous; no copy if it is so already."""
    return tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()


def view_bytes(tensor: torch.Tensor) -> memoryview:
    """Return a writable view of the bytes of a `host` tensor, which keeps its memory alive.

    The storage must not be resized while there is such a view.
    """
    # Not by tensor.numpy(), which forbids for ever that the storage is resized.
    if not tensor.nbytes:
        return memoryview(bytearray())
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, memoryview]:
    """Allocate a tensor; return it and a view to fill it."""
    tensor = torch.empty(tuple(shape), dtype=dtype)
    return tensor, view_bytes(tensor)
