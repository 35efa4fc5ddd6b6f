"""Find what a test leaves behind: processes, threads, environment variables, files in its directory."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from dist_train.testing.process_tree import (
    all_pids,
    descendant_pids,
    descendants,
    describe,
    end,
    with_environ,
)

# Inherited by every process that a test starts, so that orphans are found too.
MARKER = "LEAK_CHECK_TEST"
# Changed by pytest, and by torch at the first import of its compiler.
_VOLATILE = frozenset({MARKER, "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
_SERVICES = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "command_server.py",
    "dist-train test commands",
)
_CACHES = frozenset({"__pycache__", ".hypothesis", ".pytest_cache"})
# Time for processes and threads that are ending when a test ends.
GRACE_S = 5.0
_POLL_S = 0.02


class LeakCheck:
    """Snapshot of processes, threads, variables and directory, to compare with the state after a test.

    Covers this process and its descendants alone, not tests of other workers or other users.

    Args:
        folder: the test's own, empty working directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._value = secrets.token_hex(8)
        self._outer_value = os.environ.get(MARKER)
        self._pids = descendant_pids(os.getpid())
        self._older = all_pids()
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._environ = _environment()
        os.environ[MARKER] = self._value

    def leaks(self, grace_s: float = GRACE_S) -> list[str]:
        """Describe and remove each thing left behind, so that the next test does not find it."""
        found = [*self._directory(), *self._processes_and_threads(grace_s)]
        found += [*self._variables(), *self._files()]
        if self._outer_value is None:
            os.environ.pop(MARKER, None)
        else:
            os.environ[MARKER] = self._outer_value
        return found

    def _processes_and_threads(self, grace_s: float) -> list[str]:
        deadline = time.monotonic() + grace_s
        while True:
            processes, threads = self._living_processes(), self._living_threads()
            if not (processes or threads) or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        lines = [f"process still running: {describe(process)}" for process in processes]
        lines += [f"could not be killed: {describe(process)}" for process in end(processes)]
        return [*lines, *(f"thread still running: {thread.name}" for thread in threads)]

    def _living_processes(self) -> list[psutil.Process]:
        processes = {}
        if descendant_pids(os.getpid()) - self._pids:
            processes = {process.pid: process for process in descendants(os.getpid())}
        processes |= {
            process.pid: process for process in with_environ({MARKER: self._value}, besides=self._older)
        }
        found = [process for pid, process in sorted(processes.items()) if pid not in self._pids]
        return [process for process in found if not _is_service(process)]

    def _living_threads(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread.ident not in self._threads and not thread.daemon and thread.is_alive()
        ]

    def _variables(self) -> list[str]:
        now, before = _environment(), self._environ
        lines = [f"environment variable set: {_pair(name, now)}" for name in sorted(now.keys() - before)]
        lines += [f"environment variable removed: {name}" for name in sorted(before.keys() - now)]
        for name in sorted(now.keys() & before.keys()):
            if now[name] != before[name]:
                lines.append(f"environment variable changed: {_pair(name, now)}, was {before[name]!r}")
        if lines:
            for name in now.keys() - before:
                del os.environ[name]
            os.environ.update(before)
        return lines

    def _directory(self) -> Iterable[str]:
        try:
            now = Path.cwd()
        except FileNotFoundError:
            return [f"the working directory was removed: it was {self._folder}"]
        return [] if now == self._folder else [f"the working directory was left at {now}"]

    def _files(self) -> Iterable[str]:
        if not self._folder.is_dir():
            return []
        names = sorted(path.name for path in self._folder.iterdir() if path.name not in _CACHES)
        return [f"file left in the working directory: {name}" for name in names]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _VOLATILE}


def _pair(name: str, environ: dict[str, str]) -> str:
    return f"{name}={environ[name]!r}"


def _is_service(process: psutil.Process) -> bool:
    """Whether it is a helper of multiprocessing, which runs as long as this interpreter."""
    try:
        command = " ".join(process.cmdline())
        return process.ppid() == os.getpid() and any(name in command for name in _SERVICES)
    except psutil.Error:
        return False
