"""Limits of this process's control groups, version 1 and 2, its own and its parents'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# In version 1 "no limit" is a number near 2^63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Limit:
    """A limit in cores or bytes, and the file that it was read from."""

    amount: float
    file: Path


@dataclass(frozen=True)
class _Mount:
    """Where one hierarchy is mounted, and which part of it."""

    point: Path
    root: PurePosixPath
    version: int
    controllers: frozenset[str]


def cpu_quota(root: Path = Path("/")) -> Limit | None:
    """The smallest CPU quota, in cores; None where nothing limits."""
    return _smallest("cpu", {1: _cpu_1, 2: _cpu_2}, root)


def memory_limit(root: Path = Path("/")) -> Limit | None:
    """The smallest memory limit, in bytes; None where nothing limits."""
    return _smallest("memory", {1: _memory_1, 2: _memory_2}, root)


def _smallest(
    controller: str, readers: dict[int, Callable[[Path], Limit | None]], root: Path
) -> Limit | None:
    limits = [
        limit
        for version, folder in group_folders(controller, root)
        if (limit := _quietly(readers[version], folder)) is not None
    ]
    return min(limits, key=lambda limit: limit.amount, default=None)


def group_folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of this process's group and of all above it: a parent's limit holds too."""
    groups = _groups(root)
    for mount in _mounts(root):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        group = groups.get("" if mount.version == 2 else controller)
        if group is None:
            continue
        folder = _inside(mount, group)
        while True:
            yield mount.version, folder
            if folder == mount.point:
                break
            folder = folder.parent


def _inside(mount: _Mount, group: PurePosixPath) -> Path:
    """In a container the mount often shows the group itself as its root."""
    try:
        folder = mount.point / group.relative_to(mount.root)
    except ValueError:
        return mount.point
    return folder if folder.is_dir() else mount.point


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """Controller ("" for version 2) -> path, from /proc/self/cgroup."""
    found: dict[str, PurePosixPath] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = PurePosixPath(path)
    return found


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        point = root / fields[4].lstrip("/")
        names = frozenset(kind[-1].split(","))
        yield _Mount(point, PurePosixPath(fields[3]), 2 if kind[0] == "cgroup2" else 1, names)


def _cpu_2(folder: Path) -> Limit | None:
    file = folder / "cpu.max"
    quota, period = file.read_text().split()
    return None if quota == "max" else Limit(int(quota) / int(period), file)


def _cpu_1(folder: Path) -> Limit | None:
    file = folder / "cpu.cfs_quota_us"
    quota = int(file.read_text())
    return None if quota <= 0 else Limit(quota / int((folder / "cpu.cfs_period_us").read_text()), file)


def _memory_2(folder: Path) -> Limit | None:
    file = folder / "memory.max"
    text = file.read_text().strip()
    return None if text == "max" else Limit(int(text), file)


def _memory_1(folder: Path) -> Limit | None:
    file = folder / "memory.limit_in_bytes"
    limit = int(file.read_text())
    return None if limit >= _NO_LIMIT else Limit(limit, file)


def _quietly(read: Callable[[Path], Limit | None], folder: Path) -> Limit | None:
    """The file is not there at a root, or where the controller is off."""
    try:
        return read(folder)
    except (OSError, ValueError):
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
