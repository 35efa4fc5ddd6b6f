"""Daemons of a test cluster: ports, environment, start and kill."""

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

from dist_train.testing.process_tree import end

# Variables that identify a daemon's cluster and node; not in the environment of jobs.
CLUSTER_MARK = "TEST_SLURM_CLUSTER"
NODE_MARK = "TEST_SLURM_NODE"
# slurmstepd overwrites the first variables with its title.
_PADDING = ("TEST_SLURM_PADDING", "-" * 1000)
# Below the ephemeral range.
_PORTS = range(20000, 32000)


class ClusterError(RuntimeError):
    """A command failed, or a condition was not met in time."""


@dataclass(frozen=True)
class PortBlock:
    """Consecutive ports of one cluster, reserved by a listening socket (`guard`) of this process."""

    guard: socket.socket
    first: int

    @classmethod
    def reserve(cls, count: int) -> Self:
        """Reserve a free block of `count` ports."""
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
        """Release the block."""
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
    """Environment of a daemon, without the test's: a restarted daemon runs longer than the test."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/sbin"
    marks = {CLUSTER_MARK: str(folder), **({NODE_MARK: node} if node else {})}
    return {_PADDING[0]: _PADDING[1], "PATH": path, "LANG": "C.UTF-8", **more, **marks}


def detach(argv: Sequence[str], environ: Mapping[str, str], log: Path) -> psutil.Process:
    """Start a process in the background, as a child of process 1."""
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
    details: Callable[[], str] = str,
    every_s: float = 0.05,
) -> None:
    """Poll until `ready`; after the limit raises ClusterError with `what` and `details()`."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {within_s:g} s: {what}\n{details()}".rstrip())
        time.sleep(every_s)


def end_all(find: Callable[[], Sequence[psutil.Process]], within_s: float = 10) -> None:
    """Kill the processes that `find` returns until it returns none."""
    deadline = time.monotonic() + within_s
    while found := find():
        end(found, timeout_s=max(deadline - time.monotonic(), 0.1))
        if time.monotonic() > deadline:
            raise ClusterError(f"could not be ended: {found}")
