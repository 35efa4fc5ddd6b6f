"""Processes found by kinship and by a variable in their environment, and ended by their number."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_POLL_S = 0.02


def descendants(pid: int) -> list[psutil.Process]:
    """Living descendants of a process; a zombie is not alive."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if is_alive(process)]


def marked(name: str, value: str) -> list[psutil.Process]:
    """Living processes that were started with `name=value` in their environment, also orphans.

    Only this user's; on a system without /proc there are none.
    """
    wanted = f"{name}={value}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(psutil.Process(int(path.parent.name)))
        except (OSError, psutil.NoSuchProcess):
            continue  # it ended while we looked, or it is somebody else's
    return [process for process in found if process.pid != os.getpid() and is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: not ended, and not a zombie that its parent has not asked for yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_is_alive(pid: int) -> bool:
    """As `is_alive`, by number: a zombie that nobody has asked for exists and is not alive."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def end(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> list[psutil.Process]:
    """Kill each by its number; returns those that are still there after `timeout_s`."""
    left = list(processes)
    for process in left:
        try:
            process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    deadline = time.monotonic() + timeout_s
    while (left := [process for process in left if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def ask_for_stacks(processes: Iterable[psutil.Process], timeout_s: float = 2.0) -> None:
    """Let each that has a handler of SIGUSR1 (a rank, its loader workers) write its stacks to its stderr."""
    asked = False
    for process in processes:
        try:
            if _catches(process.pid, signal.SIGUSR1):
                process.send_signal(signal.SIGUSR1)
                asked = True
        except (OSError, psutil.NoSuchProcess):
            continue
    if asked:
        # A handler writes when its process next runs, through the agent's pipe; nothing tells when it has.
        time.sleep(timeout_s)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether it has a handler: without one the signal would kill it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def describe(process: psutil.Process) -> str:
    """`pid 4711 (parent 1): python -m dist_train.agent …`."""
    try:
        with process.oneshot():
            words = " ".join(process.cmdline()) or process.name()
            return f"pid {process.pid} (parent {process.ppid()}): {words[:160]}"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}"
