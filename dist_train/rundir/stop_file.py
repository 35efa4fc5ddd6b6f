"""The stop file: a small memory-mapped file (control/board-node-<n>) shared by one node's agent and ranks.

Byte 0 is the stop flag, written by the agent (0: none, 1: save and stop); byte 1 is 1 once the agent
interrupts ranks that do not read the flag. Each local rank has a slot
that only it writes: its pid once it reads the flag, the optimizer steps it has done, and a counter
that it increments whenever it makes progress; then how far it is on its way out (`ExitMark`), and what
became of a scheduler's SIGTERM (`SigtermMark`). Reading
and writing need no system call (0.04 us).
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from dist_train.rundir.records import write_bytes_atomic

_SLOT = 64
_FIELDS = struct.Struct("<QqQ")
_HEARTBEATS = struct.Struct("<Q")
_EXIT_FIELDS = struct.Struct("<QB")
_SIGTERM_FIELDS = struct.Struct("<BB")
_SIGTERM_OFFSET = 48  # in a slot
NO_STEP = -1


@dataclass(frozen=True)
class Slot:
    """What one local rank wrote: pid 0: it has never read the flag; step -1: none done yet."""

    pid: int
    step: int
    progress_count: int


@dataclass(frozen=True)
class ExitMark:
    """How far a rank is on its way out.

    Attributes:
        heartbeats: counted up every second by a thread of the rank: it stands still while another thread
            holds the interpreter's lock.
        exit_code: that of the script, once that has ended.
        finalizing: threads are joined, exit functions have run, files are flushed: only the interpreter's
            own end is left.
    """

    heartbeats: int = 0
    exit_code: int | None = None
    finalizing: bool = False


@dataclass(frozen=True)
class SigtermMark:
    """Who has a scheduler's SIGTERM to all processes in one rank.

    Attributes:
        handled_by_script: its handler is the script's own, as of a second ago.
        passed_over: it came while it was not.
    """

    handled_by_script: bool = False
    passed_over: bool = False


class StopFile:
    """One node's stop flag and progress slots; the agent calls `create`, a rank `open`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, path: Path, local_world_size: int) -> StopFile:
        """Create the file for `local_world_size` ranks: no stop, no steps."""
        size = _SLOT * (1 + local_world_size)
        empty = bytes(_SLOT) + _FIELDS.pack(0, NO_STEP, 0).ljust(_SLOT, b"\0") * local_world_size
        write_bytes_atomic(path, empty)
        return cls._open(path, size)

    @classmethod
    def open(cls, path: Path) -> StopFile:
        """Open an existing file, also one of a single byte made by hand; raises FileNotFoundError."""
        size = path.stat().st_size
        if size == 0:
            raise FileNotFoundError(f"{path} is empty")
        return cls._open(path, size)

    @classmethod
    def _open(cls, path: Path, size: int) -> StopFile:
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

    @property
    def interrupts(self) -> bool:
        """Whether the agent interrupts the ranks that do not read the flag, by SIGTERM."""
        return len(self._map) > 1 and self._map[1] == 1

    @interrupts.setter
    def interrupts(self, value: bool) -> None:
        self._map[1] = int(value)

    def read(self, local_rank: int) -> Slot:
        """Read one rank's slot."""
        return Slot(*_FIELDS.unpack_from(self._map, _SLOT * (1 + local_rank)))

    def write(self, local_rank: int, slot: Slot) -> None:
        """Write this rank's own slot; a file of a single byte has none."""
        if len(self._map) < _SLOT * (2 + local_rank):
            return
        _FIELDS.pack_into(self._map, _SLOT * (1 + local_rank), slot.pid, slot.step, slot.progress_count)

    def read_exit(self, local_rank: int) -> ExitMark:
        """Read how far one rank is on its way out."""
        offset = _SLOT * (1 + local_rank) + _FIELDS.size
        (heartbeats,) = _HEARTBEATS.unpack_from(self._map, offset)
        code, finalizing = _EXIT_FIELDS.unpack_from(self._map, offset + _HEARTBEATS.size)
        return ExitMark(heartbeats, code - 1 if code else None, bool(finalizing))

    def write_heartbeats(self, local_rank: int, heartbeats: int) -> None:
        """Write this rank's count of heartbeats; a file of a single byte has no slots."""
        offset = _SLOT * (1 + local_rank) + _FIELDS.size
        if len(self._map) >= offset + _HEARTBEATS.size:
            _HEARTBEATS.pack_into(self._map, offset, heartbeats)

    def write_exit(self, local_rank: int, exit_code: int, *, finalizing: bool) -> None:
        """Write this rank's exit code once its script has ended; a file of a single byte has no slots."""
        offset = _SLOT * (1 + local_rank) + _FIELDS.size + _HEARTBEATS.size
        if len(self._map) >= offset + _EXIT_FIELDS.size:
            _EXIT_FIELDS.pack_into(self._map, offset, exit_code + 1, finalizing)

    def read_sigterm(self, local_rank: int) -> SigtermMark:
        """Read who has a scheduler's SIGTERM in one rank."""
        fields = _SIGTERM_FIELDS.unpack_from(self._map, _SLOT * (1 + local_rank) + _SIGTERM_OFFSET)
        return SigtermMark(*map(bool, fields))

    def write_sigterm_handled(self, local_rank: int, by_script: bool) -> None:
        """Write whether the script has a handler of SIGTERM; a file of a single byte has no slots."""
        self._write_byte(_SLOT * (1 + local_rank) + _SIGTERM_OFFSET, by_script)

    def write_sigterm_passed_over(self, local_rank: int) -> None:
        """Write that a SIGTERM came which was not the agent's, and that the script has not seen it."""
        self._write_byte(_SLOT * (1 + local_rank) + _SIGTERM_OFFSET + 1, True)

    def _write_byte(self, offset: int, value: bool) -> None:
        if len(self._map) > offset:
            self._map[offset] = int(value)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()
