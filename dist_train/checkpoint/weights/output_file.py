"""Write one safetensors file of weights, durably."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.hashing import Digested
from dist_train.checkpoint.state.module_state import Stored
from dist_train.checkpoint.weights.byte_pieces import write_safetensors
from dist_train.rundir.durable_files import durable_file

# Smaller pieces are joined for one write.
_JOIN_BYTES = 1 << 20


def write_file(path: Path, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> dict[str, Digested]:
    """Write a new safetensors file; return the digest of each tensor."""
    with durable_file(path) as write:
        joined = _Joined(write)
        digests = write_safetensors(joined.write, tensors, metadata)
        joined.flush()
    return digests


class _Joined:
    """Joins small pieces for one write."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting = bytearray()

    def write(self, piece: memoryview) -> None:
        if len(self._waiting) + len(piece) > _JOIN_BYTES:
            self.flush()
        if len(piece) > _JOIN_BYTES:
            self._write(piece)
        else:
            self._waiting += piece

    def flush(self) -> None:
        if self._waiting:
            self._write(memoryview(self._waiting))
            self._waiting = bytearray()
