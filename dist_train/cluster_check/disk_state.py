"""Room, latency and locks of a folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from statistics import median
from typing import Literal

from dist_train.doctor.facts import DiskFacts
from dist_train.rundir.records import write_bytes_atomic

_TRIES = 5
_BYTES = 4096


def read_disk(what: Literal["run directory", "temporary files"], folder: Path, mark: str) -> DiskFacts:
    """Write some small files as records are written, and remove them.

    Args:
        mark: part of their names that no other node has.
    """
    kind = file_system(folder)
    try:
        facts = os.statvfs(folder)
        seconds, locks = _try_files(folder, mark)
    except OSError as error:
        problem = f"{os.strerror(error.errno or 0)}"
        return DiskFacts(what=what, path=str(folder), kind=kind, problem=problem)
    return DiskFacts(
        what=what,
        path=str(folder),
        kind=kind,
        free=facts.f_frsize * facts.f_bavail,
        total=facts.f_frsize * facts.f_blocks,
        free_files=facts.f_favail if facts.f_files else None,  # btrfs and some network ones count none
        write_s=seconds,
        locks=locks,
    )


def _try_files(folder: Path, mark: str) -> tuple[float, bool]:
    path = folder / f"doctor-write-{mark}"
    times = []
    try:
        for number in range(_TRIES):
            begin = time.perf_counter()
            write_bytes_atomic(path, bytes([number]) * _BYTES)
            times.append(time.perf_counter() - begin)
        return median(times), _can_lock(path)
    finally:
        path.unlink(missing_ok=True)


def _can_lock(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def file_system(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that a folder is on (nfs4, lustre, ext4, …); empty where it is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
        resolved = folder.resolve()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, after = left.split(), right.split()
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].replace("\\040", " "))
        # Of two mounts at one place the later one is seen.
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after[0]
    return kind
