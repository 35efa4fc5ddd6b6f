"""A file system that dies at its n-th change: by process loss, or by power loss."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("open", "write", "fsync", "close", "rename", "replace", "unlink", "rmdir", "mkdir")
REAL = {name: getattr(os, name) for name in CHANGES}


class Crash(BaseException):
    """The process is gone: not an Exception, so that no handler tidies up."""


@dataclass
class Entry:
    """A change of names that is not durable before each directory in `pending` was synced."""

    path: str
    pending: set[str]
    source: str | None = None
    overwritten: bytes | None = None

    def follow(self, old: str, new: str) -> None:
        """The directory `old` is called `new` now."""
        self.path = moved(self.path, old, new)
        self.pending = {moved(path, old, new) for path in self.pending}

    def undo(self) -> None:
        if self.source is not None:
            REAL["rename"](self.path, self.source)
            if self.overwritten is not None:
                Path(self.path).write_bytes(self.overwritten)
        elif os.path.isdir(self.path):
            shutil.rmtree(self.path)
        elif os.path.lexists(self.path):
            os.unlink(self.path)


def moved(path: str, old: str, new: str) -> str:
    """`path` after the rename of `old`, which may be a directory above it."""
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path


class DyingFiles:
    """Counts every change under `root`; raises at the n-th and at all later ones.

    Args:
        root: only paths below it count.
        at: which change does not happen any more (a write is torn in half); 0: none.
        power: also lose what was not synced: file contents, new names, renames.
    """

    def __init__(self, root: Path, at: int = 0, power: bool = False) -> None:
        self.root, self.at, self.power = str(root), at, power
        self.count = 0
        self.log: list[str] = []
        self.forget = ""  # a part of a path whose fsync does nothing
        self._paths: dict[int, str] = {}
        self._unsynced: dict[str, int] = {}
        self._entries: list[Entry] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in REAL:
            monkeypatch.setattr(os, name, getattr(self, name))

    def _change(self, what: str, path: str) -> None:
        self.count += 1
        self.log.append(f"{what} {os.path.relpath(path, self.root)}")
        if self.at and self.count >= self.at:
            raise Crash(self.log[-1])

    def _ours(self, path: str) -> bool:
        return path.startswith(self.root)

    def _at(self, path: Any, dir_fd: int | None) -> str:
        return os.path.join(self._paths[dir_fd], path) if dir_fd is not None else os.fspath(path)

    def _named(self, path: str) -> None:
        self._entries.append(Entry(path, {os.path.dirname(path)}))

    def _follow(self, old: str, new: str) -> None:
        for entry in self._entries:
            entry.follow(old, new)
        self._unsynced = {moved(path, old, new): size for path, size in self._unsynced.items()}

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._at(path, dir_fd)
        if self._ours(place) and flags & os.O_CREAT:
            self._change("create", place)
            self._named(place)
        descriptor = REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if self._ours(place):
            self._paths[descriptor] = place
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        path = self._paths.get(descriptor)
        if path is None:
            return REAL["write"](descriptor, data)
        self._unsynced.setdefault(path, os.fstat(descriptor).st_size)
        try:
            self._change("write", path)
        except Crash:
            REAL["write"](descriptor, data[: len(data) // 2])
            raise
        return REAL["write"](descriptor, data)

    def fsync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        self._change("fsync", path)
        if self.forget and self.forget in path:
            return
        self._unsynced.pop(path, None)
        for entry in self._entries:
            entry.pending.discard(path)
        self._entries = [entry for entry in self._entries if entry.pending]

    def close(self, descriptor: int) -> None:
        self._paths.pop(descriptor, None)
        REAL["close"](descriptor)

    def rename(self, source: Any, target: Any) -> None:
        source, target = os.fspath(source), os.fspath(target)
        self._change("rename", target)
        old = Path(target).read_bytes() if os.path.isfile(target) else None
        REAL["rename"](source, target)
        self._follow(source, target)
        parents = {os.path.dirname(source), os.path.dirname(target)}
        self._entries.append(Entry(target, parents, source, old))

    replace = rename

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._at(path, dir_fd)
        if os.path.lexists(place) and self._ours(place):
            self._change("unlink", place)
        REAL["unlink"](path, dir_fd=dir_fd)
        self._unsynced.pop(place, None)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._change("rmdir", self._at(path, dir_fd))
        REAL["rmdir"](path, dir_fd=dir_fd)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._at(path, dir_fd)
        self._change("mkdir", place)
        REAL["mkdir"](path, mode, dir_fd=dir_fd)
        self._named(place)

    def settle(self) -> None:
        """What the next process finds on the disk."""
        for descriptor in list(self._paths):
            REAL["close"](descriptor)
        if not self.power:
            return
        for path, size in self._unsynced.items():
            if os.path.exists(path):
                os.truncate(path, size)
        while self._entries:
            entry = self._entries.pop()
            if os.path.lexists(entry.path):
                entry.undo()
                if entry.source is not None:
                    self._follow(entry.path, entry.source)


class Killed(DyingFiles):
    """Ends the process at the n-th change, whichever of its threads makes it."""

    def _change(self, what: str, path: str) -> None:
        self.count += 1
        if self.at and self.count >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class FullDisk:
    """Says `code` at the n-th call of one operation on a file below `root`, and at all later ones."""

    def __init__(self, root: Path, operation: str, at: int, code: int = errno.ENOSPC) -> None:
        self.root, self.operation, self.at, self.code, self.count = str(root), operation, at, code, 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = REAL[self.operation]

        def full(descriptor: int, *rest: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            inside = path.startswith(self.root) and os.path.isfile(path)
            self.count += inside
            if inside and self.count >= self.at:
                if self.operation == "close":
                    real(descriptor)
                raise OSError(self.code, os.strerror(self.code))
            return real(descriptor, *rest)

        monkeypatch.setattr(os, self.operation, full)
