"""Tensors in memory that other processes of this machine map: written once, then sealed against any change.

A file without a name in memory (memfd), which its maker offers by its process id and descriptor. Each
process maps it privately: what one writes into its tensors, no other sees, and pages that nobody has
written are there once per machine. The memory is given back when the last tensor of the last process goes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_bytes import code_of, dtype_of
from dist_train.checkpoint.format.tensor_memory import Kind, ReadInto
from dist_train.rundir.this_machine import this_machine

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

_ALIGN = 64
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def machine_of_this_process() -> JsonValue:
    """Return what processes have in common that may map each other's memory; None where it is not known."""
    machine = this_machine()
    return [machine, os.getuid()] if machine else None


class SharedMemory:
    """The tensors of one checkpoint, in memory that other processes can map.

    Args:
        data_bytes: of all tensors together, at most.
        tensors: how many there are, at most.

    Raises:
        OSError: this system gives no such memory.
    """

    def __init__(self, data_bytes: int, tensors: int) -> None:
        self._size = data_bytes + _ALIGN * (tensors + 1)
        self._descriptor = os.memfd_create("dist-train-checkpoint", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._end = 0
        os.ftruncate(self._descriptor, self._size)
        self._map = _mapped(self._descriptor, self._size)
        self._base = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()

    def fill(self, kinds: Sequence[Kind], read_into: ReadInto) -> list[torch.Tensor]:
        """Return tensors of these dtypes and shapes, whose bytes `read_into` has given in this order."""
        return [self._fill_one(dtype, shape, read_into) for dtype, shape in kinds]

    def _fill_one(self, dtype: torch.dtype, shape: Sequence[int], read_into: ReadInto) -> torch.Tensor:
        start = -(-self._end // _ALIGN) * _ALIGN
        count = dtype.itemsize
        for length in shape:
            count *= length
        if start + count > self._size:
            raise DamagedCheckpoint("the files hold more tensors than the manifest names")
        # Not through the map: a write says that memory is short, where a page fault ends the process.
        scratch = memoryview(bytearray(min(count, BLOCK_BYTES)))
        for done in range(0, count, BLOCK_BYTES):
            piece = scratch[: min(BLOCK_BYTES, count - done)]
            read_into(piece)
            _write_all(self._descriptor, piece, start + done)
        self._end = start + count
        return _tensor(self._map, dtype, shape, start)

    def offer(self, tensors: Mapping[str, torch.Tensor], facts: JsonValue) -> JsonValue:
        """Seal the memory; return what `open_offer` needs in another process while `close` is not called.

        Args:
            tensors: those that `fill` has returned, by name.
            facts: given to whoever opens it.

        Raises:
            OSError: it could not be sealed.
        """
        places = {
            name: [code_of(tensor.dtype), [*tensor.shape], self._place(tensor)]
            for name, tensor in tensors.items()
        }
        head = dump_canonical({"tensors": places, "facts": facts})
        _write_all(self._descriptor, memoryview(head), self._size)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return [os.getpid(), self._descriptor, self._size, len(head), xxhash.xxh3_128_hexdigest(head)]

    def _place(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr() - self._base if tensor.numel() else 0

    def close(self) -> None:
        """Offer it no longer; tensors stay."""
        self._close()


def open_offer(offer: Sequence[Any]) -> tuple[dict[str, torch.Tensor], Any]:
    """Map what another process of this machine offers; return its tensors and facts.

    Raises:
        OSError: this process may not open it, or it is not what was offered.
    """
    pid, number, start, count, digest = offer
    descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError(f"the memory of process {pid} is not sealed")
        head = os.pread(descriptor, count, start)
        if xxhash.xxh3_128_hexdigest(head) != digest:
            raise OSError(f"process {pid} is another one than the one that offers its memory")
        everything = _mapped(descriptor, start)
    finally:
        os.close(descriptor)
    content: Any = load_canonical(head)
    places = content["tensors"].items()
    tensors = {name: _tensor(everything, dtype_of(code), shape, at) for name, (code, shape, at) in places}
    return tensors, content["facts"]


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    # A private map; it shows what `fill` writes after it, as long as this process has not written there.
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)


def _tensor(memory: mmap.mmap, dtype: torch.dtype, shape: Sequence[int], start: int) -> torch.Tensor:
    count = dtype.itemsize
    for length in shape:
        count *= length
    if not count:
        return torch.empty(tuple(shape), dtype=dtype)
    # With a storage of its own: torch.set_rng_state reads a storage from its start.
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=start)
    return flat.view(dtype).view(tuple(shape))


def _write_all(descriptor: int, piece: memoryview, start: int) -> None:
    while piece:
        written = os.pwrite(descriptor, piece, start)
        piece, start = piece[written:], start + written
