"""The board: a small mmapped file that one node's agent and its ranks share.

Byte 0 is the stop flag, written by the agent (0 none, 1 save and stop). Each local rank has a slot
that only it writes: its pid once it reads the flag, the optimizer steps it has done, and a count
that moves whenever it makes progress. Reading and writing cost no system call (0.04 us).
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_SLOT = 64
_FIELDS = struct.Struct("<QqQ")
NO_STEP = -1


@dataclass(frozen=True)
class Slot:
    """What one local rank wrote: pid 0 means that it never looked at the flag; step -1, none done."""

    pid: int
    step: int
    beats: int


class Board:
    """One node's board; `create` by the agent, `open` by a rank."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, path: Path, local_world_size: int) -> Board:
        """Make a fresh board for `local_world_size` ranks: no stop, no steps."""
        size = _SLOT * (1 + local_world_size)
        empty = bytes(_SLOT) + _FIELDS.pack(0, NO_STEP, 0).ljust(_SLOT, b"\0") * local_world_size
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(empty)
        os.rename(temporary, path)
        return cls._open(path, size)

    @classmethod
    def open(cls, path: Path) -> Board:
        """Open an existing board, or a flag of one byte made by hand; raises FileNotFoundError."""
        size = path.stat().st_size
        if size == 0:
            raise FileNotFoundError(f"{path} is not a board yet")
        return cls._open(path, size)

    @classmethod
    def _open(cls, path: Path, size: int) -> Board:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(descriptor, size)
        finally:
            os.close(descriptor)

    @property
    def stop(self) -> int:
        """The stop flag: 0 none, 1 save and stop."""
        return self._map[0]

    @stop.setter
    def stop(self, value: int) -> None:
        self._map[0] = value

    def read(self, local_rank: int) -> Slot:
        """One rank's slot."""
        return Slot(*_FIELDS.unpack_from(self._map, _SLOT * (1 + local_rank)))

    def write(self, local_rank: int, slot: Slot) -> None:
        """Write one's own slot; a flag made by hand (one byte) has none."""
        if len(self._map) < _SLOT * (2 + local_rank):
            return
        _FIELDS.pack_into(self._map, _SLOT * (1 + local_rank), slot.pid, slot.step, slot.beats)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()
