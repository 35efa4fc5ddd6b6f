"""The living agents and ranks of a run, by their numbers, from what is in the environment of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from dist_train.jobs.orphans import find_processes
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json


def ranks(run: RunDir) -> dict[int, int]:
    """The ranks' pids."""
    return {int(environ[b"RANK"]): pid for pid, environ in _processes(run) if b"RANK" in environ}


def agents(run: RunDir) -> dict[int, int]:
    """The agents' pids by node.

    A warm parent has its agent's environment for a moment after the fork: it is below a process of its node.
    """
    node = {
        pid: int(environ[b"DIST_TRAIN_NODE_RANK"])
        for pid, environ in _processes(run)
        if b"RANK" not in environ and b"DIST_TRAIN_NODE_RANK" in environ
    }
    return {own: pid for pid, own in node.items() if all(node.get(above) != own for above in _above(pid))}


def _above(pid: int) -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.NoSuchProcess:
        return []


def _processes(run: RunDir) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    run_id = ((read_json(run.job) or {}).get("spec") or {}).get("run_id")
    for pid in find_processes(run_id) if run_id else []:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        yield pid, dict(word.split(b"=", 1) for word in words if b"=" in word)
