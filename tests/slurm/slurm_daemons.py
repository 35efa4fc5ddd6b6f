"""Daemons of a test cluster: their ports, their environment, how they are found and ended by a mark in it."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from dist_train.testing.processes import end, is_alive

# Which cluster and which node a daemon belongs to; not in the environment of jobs.
CLUSTER_MARK = "TEST_SLURM_CLUSTER"
NODE_MARK = "TEST_SLURM_NODE"
# slurmstepd writes its title over the first variables.
_PADDING = ("TEST_SLURM_PADDING", "-" * 1000)
# Below the ephemeral range.
_PORTS = range(20000, 32000)


class ClusterError(RuntimeError):
    """A command failed, or something did not come true in time."""


@dataclass(frozen=True)
class PortBlock:
    """Ports of one cluster: the guard is held by this process, so that no other cluster takes the block."""

    guard: socket.socket
    first: int

    @classmethod
    def reserve(cls, count: int) -> Self:
        """A free block of `count` ports."""
        size = count + 1
        starts = list(range(_PORTS.start, _PORTS.stop - size, size))
        for start in random.SystemRandom().sample(starts, 50):
            guard = _listen(start)
            if guard is None:
                continue
            if all(_is_free(port) for port in range(start + 1, start + size)):
                return cls(guard, start + 1)
            guard.close()
        raise ClusterError(f"no {size} free ports in a row between {_PORTS.start} and {_PORTS.stop}")

    def release(self) -> None:
        """Others may take the block."""
        self.guard.close()


def _listen(port: int) -> socket.socket | None:
    server = socket.socket()
    try:
        server.bind(("0.0.0.0", port))
        server.listen()
    except OSError:
        server.close()
        return None
    return server


def _is_free(port: int) -> bool:
    server = _listen(port)
    if server is not None:
        server.close()
    return server is not None


def daemon_environ(folder: Path, more: Mapping[str, str], node: str = "") -> dict[str, str]:
    """Nothing of the test's environment: a daemon that is started again outlives the test."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/sbin"
    marks = {CLUSTER_MARK: str(folder), **({NODE_MARK: node} if node else {})}
    return {_PADDING[0]: _PADDING[1], "PATH": path, "LANG": "C.UTF-8", **more, **marks}


def detach(argv: Sequence[str], environ: Mapping[str, str], log: Path) -> psutil.Process:
    """Start in the background what does not go there by itself, as a child of process 1."""
    script = 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(log), *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env=environ,
        timeout=30,
    )
    try:
        return psutil.Process(int(done.stdout))
    except psutil.NoSuchProcess:
        raise ClusterError(f"{argv[0]} ended at once, see {log.name}") from None


def until(
    ready: Callable[[], bool],
    what: str,
    within_s: float,
    else_say: Callable[[], str] = str,
    every_s: float = 0.05,
) -> None:
    """Poll until it is so; after the bound the error says what was awaited, and `else_say`."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {within_s:g} s: {what}\n{else_say()}".rstrip())
        time.sleep(every_s)


def with_environ(wanted: Mapping[str, str], having: str = "") -> list[psutil.Process]:
    """Living processes whose environment has all these pairs, and a variable called `having`."""
    pairs = {f"{name}={value}".encode() for name, value in wanted.items()}
    start = f"{having}=".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            items = path.read_bytes().split(b"\0")
            if pairs <= set(items) and (not having or any(item.startswith(start) for item in items)):
                found.append(psutil.Process(int(path.parent.name)))
        except (OSError, psutil.NoSuchProcess):
            continue  # it ended while we looked, or it is somebody else's
    return [process for process in found if process.pid != os.getpid() and is_alive(process)]


def end_all(find: Callable[[], Sequence[psutil.Process]], within_s: float = 10) -> None:
    """Kill what `find` finds until it finds nothing more."""
    deadline = time.monotonic() + within_s
    while found := find():
        end(found, timeout_s=max(deadline - time.monotonic(), 0.1))
        if time.monotonic() > deadline:
            raise ClusterError(f"could not be ended: {found}")
