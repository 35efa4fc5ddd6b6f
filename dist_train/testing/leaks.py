"""What a test leaves behind: processes, environment variables, threads, files where it ran."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from dist_train.testing.processes import descendants, describe, end, marked

# Every process that a test starts inherits it, also one whose parent has died since.
MARKER = "LEAK_POLICE_TEST"
# What pytest changes by itself, and torch on the first import of its compiler.
_VOLATILE = frozenset({MARKER, "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
_SERVICES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_CACHES = frozenset({"__pycache__", ".hypothesis", ".pytest_cache"})
# Processes and threads that are ending when a test ends get this long.
GRACE_S = 5.0
_POLL_S = 0.02


class Watch:
    """Looks at the world when it is made, and tells later what has been added to it.

    Only what this process and its descendants did: other tests, on other workers, and other users
    of the machine are not seen.

    Args:
        folder: where the test runs; it should be empty and the test's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._value = secrets.token_hex(8)
        self._old_mark = os.environ.get(MARKER)
        self._pids = {process.pid for process in descendants(os.getpid())}
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._environ = _environment()
        os.environ[MARKER] = self._value

    def leaks(self, grace_s: float = GRACE_S) -> list[str]:
        """A line for each thing left behind; it is removed, so that the next test does not meet it."""
        found = [*self._directory(), *self._processes_and_threads(grace_s)]
        found += [*self._variables(), *self._files()]
        if self._old_mark is None:
            os.environ.pop(MARKER, None)
        else:
            os.environ[MARKER] = self._old_mark
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
        kin = {process.pid: process for process in descendants(os.getpid())}
        kin |= {process.pid: process for process in marked(MARKER, self._value)}
        found = [process for pid, process in sorted(kin.items()) if pid not in self._pids]
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
    """multiprocessing's helpers of this interpreter: they live as long as it does."""
    try:
        words = " ".join(process.cmdline())
        return process.ppid() == os.getpid() and any(name in words for name in _SERVICES)
    except psutil.Error:
        return False
