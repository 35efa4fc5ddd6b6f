"""Find processes by parent or by environment, ask for their stacks, kill them by pid."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import psutil

_POLL_S = 0.02


def descendants(pid: int) -> list[psutil.Process]:
    """Living descendants of a process, zombies excluded."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if is_alive(process)]


def descendant_pids(pid: int) -> set[int]:
    """Pids of all descendants, zombies included, by what the kernel lists of each thread.

    `descendants` reads every process of the machine; this reads only the process's own, at a fiftieth of
    the time where it has none. A kernel without these lists (CONFIG_PROC_CHILDREN) is asked as psutil does.
    """
    found: set[int] = set()
    left = [pid]
    while left:
        children = _children(left.pop())
        if children is None:
            return {process.pid for process in psutil.Process(pid).children(recursive=True)}
        left += children - found
        found |= children
    return found


def _children(pid: int) -> set[int] | None:
    """Pids of the children of all threads; None where the kernel does not list them."""
    while True:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return set()  # it has ended
        found: set[int] = set()
        missing = False
        for task in tasks:
            try:
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    found.update(map(int, file.read().split()))
            except FileNotFoundError:
                missing = missing or os.path.exists(f"/proc/{pid}/task/{task}/stat")
            except OSError:
                continue
        if missing:
            return None
        # The children of a thread that ended meanwhile are those of another one, perhaps already read.
        if not os.path.isdir(f"/proc/{pid}") or set(tasks) <= set(_listed(f"/proc/{pid}/task")):
            return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def all_pids() -> frozenset[str]:
    """The names of all processes' folders in /proc."""
    return frozenset(name for name in os.listdir("/proc") if name.isdigit())


def with_environ(
    wanted: Mapping[str, str], having: str = "", *, besides: Container[str] = ()
) -> list[psutil.Process]:
    """Living processes of this user that were started with these variables, orphans included.

    Reads /proc/PID/environ: psutil's environ() takes ten times as long, which every test would pay.

    Args:
        having: also a variable of this name, with any value.
        besides: of `all_pids` before the variables were set: these processes are not read.
    """
    pairs = {f"{name}={value}".encode() for name, value in wanted.items()}
    prefix = f"{having}=".encode()
    found = []
    for name in all_pids():
        if name in besides:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb", buffering=0) as file:
                block = file.read()
            if not all(pair in block for pair in pairs):
                continue
            items = block.split(b"\0")
            if pairs <= set(items) and (not having or any(item.startswith(prefix) for item in items)):
                found.append(psutil.Process(int(name)))
        except (OSError, psutil.NoSuchProcess):
            continue  # it has ended, or belongs to another user
    return [process for process in found if process.pid != os.getpid() and is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: neither ended nor a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_is_alive(pid: int) -> bool:
    """`is_alive` by pid: a zombie still has its pid and is not alive."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def end(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> list[psutil.Process]:
    """Kill each by its pid; returns those still alive after `timeout_s`."""
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


def ask_for_stacks(processes: Iterable[psutil.Process], each_s: float = 0.3, timeout_s: float = 2.0) -> None:
    """Send SIGUSR1 to each that handles it (ranks, loader workers), for its stacks on stderr.

    One after the other: faulthandler writes a line in several pieces, so a rank and its loader workers,
    which share one pipe, would mix theirs.

    Args:
        each_s: time for one process to write its stacks. Nothing tells when the handler has written.
        timeout_s: time for the agent to forward them all.
    """
    requested = False
    for pid, process in {process.pid: process for process in processes}.items():
        try:
            if _catches(pid, signal.SIGUSR1):
                process.send_signal(signal.SIGUSR1)
                requested = True
                time.sleep(each_s)
        except (OSError, psutil.NoSuchProcess):
            continue
    if requested:
        time.sleep(timeout_s)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether it handles the signal: otherwise the signal would kill it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def describe(process: psutil.Process) -> str:
    """Format as `pid 4711 (parent 1): python -m dist_train.agent …`."""
    try:
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            return f"pid {process.pid} (parent {process.ppid()}): {command[:160]}"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}"
