"""attempts/<k>/time-rank-<r>: the sums of a rank's clock in shared memory, so that no kill loses them.

An array of float64. The rank writes it at every change of part (a few stores, no system call); the kernel
keeps what was written when the process is killed. Times are those of the rank's monotonic clock; one reading
of the wall clock beside it tells when that was.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_train.rundir.directory import RunDir

# What a rank's clock counts for. The last three are named by the reader, who knows what came after.
CLOCK_PARTS = (
    "start",
    "import",
    "membership",
    "restore",
    "data_wait",
    "compute",
    "communication",
    "evaluation",
    "save_stall",
    "stopping",
    "idle",
    "script",  # since the script's first line, as long as it imports; or until dt.init where we cannot tell
    "body",  # since its imports, and dt.init has not been called
    "set_up",  # since dt.init, and no step has begun
)
CLOCK_FILE = "time-rank-{rank}"
# A file per rank and attempt is too many for a shared file system where ranks are thousands.
RANKS_WITH_A_CLOCK = 256
VERSION, WALL, MONOTONIC, ALIVE, SINCE, PART, RESUMED, KNOWN, COMMITS = range(9)
SUMS = 16
RING = 32
# Commits that are remembered: a restore may fall back to an older checkpoint.
KEPT_COMMITS = 8
COMMIT_SIZE = 1 + len(CLOCK_PARTS)
SIZE = RING + KEPT_COMMITS * COMMIT_SIZE
# Values of RESUMED.
NOT_RESTORED, FROM_THE_BEGINNING = -2, -1
_VERSION = 1


@dataclass(frozen=True)
class ClockReading:
    """What a rank's clock had counted at one moment; times by the wall clock.

    Args:
        began: when the clock was started.
        since: up to when `seconds` count; from there on it is `part`.
        alive: when the rank was last alive, as far as it wrote.
        resumed: the step it went on from, -1 from the beginning, None if nothing was restored (yet).
        known: parts that are measured, also where they have no second.
        commits: (step, seconds by part) of its newest checkpoints, oldest first.
    """

    began: float
    since: float
    alive: float
    part: str
    seconds: Mapping[str, float]
    resumed: int | None
    known: frozenset[str]
    commits: tuple[tuple[int, Mapping[str, float]], ...]


def clock_path(run: RunDir, attempt: int, rank: int = 0) -> Path:
    """The file of a rank's clock in one attempt."""
    return run.attempts / str(attempt) / CLOCK_FILE.format(rank=rank)


def create_clock_file(path: Path) -> memoryview[float]:
    """Create the file and map it; raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only made longer: a page without a block on a full disk would be a SIGBUS later.
        content = array("d", bytes(8 * SIZE))
        content[VERSION] = _VERSION
        content[RESUMED] = NOT_RESTORED
        os.write(descriptor, content.tobytes())
        return memoryview(mmap.mmap(descriptor, 8 * SIZE)).cast("d")
    finally:
        os.close(descriptor)


def read_clock_file(path: Path) -> ClockReading | None:
    """What it says now; None if there is none, or none that this version reads."""
    content = array("d")
    try:
        content.frombytes(path.read_bytes()[: 8 * SIZE])
    except (FileNotFoundError, ValueError):
        return None
    if len(content) < SIZE or content[VERSION] != _VERSION or not content[MONOTONIC]:
        return None
    to_wall = content[WALL] - content[MONOTONIC]
    resumed, known = int(content[RESUMED]), int(content[KNOWN])
    return ClockReading(
        began=content[WALL],
        since=content[SINCE] + to_wall,
        alive=max(content[SINCE], content[ALIVE]) + to_wall,
        part=CLOCK_PARTS[int(content[PART])],
        seconds=_by_part(content, SUMS),
        resumed=None if resumed == NOT_RESTORED else resumed,
        known=frozenset(name for number, name in enumerate(CLOCK_PARTS) if known >> number & 1),
        commits=_commits(content),
    )


def _commits(content: array[float]) -> tuple[tuple[int, Mapping[str, float]], ...]:
    count = int(content[COMMITS])
    places = [
        RING + number % KEPT_COMMITS * COMMIT_SIZE for number in range(max(0, count - KEPT_COMMITS), count)
    ]
    return tuple((int(content[place]), _by_part(content, place + 1)) for place in places)


def _by_part(content: array[float], first: int) -> dict[str, float]:
    return {name: content[first + number] for number, name in enumerate(CLOCK_PARTS)}
