"""Slurm's child while the agent or script that it was started as is a fork of the command server."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_MESSAGE, _READY = b"command", b"ready"
_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}


def stand_for(words: Sequence[str], address: str) -> None:
    """Have it forked and end as it does; return where the server forks none.

    Args:
        words: the command line.
        address: a file with the server's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection:
        try:
            connection.connect("\0" + Path(address).read_text(encoding="utf-8"))
        except OSError:
            return
        if connection.recv(len(_READY)) != _READY:
            return
        answers, held = _ask(connection, words)
    first = answers.readline()
    if not first:
        os.close(held)
        return
    _end_as(int(first), answers)


def _ask(connection: socket.socket, words: Sequence[str]) -> tuple[Any, int]:
    """Send the request; the server's answers, and what tells it of this process's end."""
    body = os.memfd_create("task", os.MFD_CLOEXEC)
    status_read, status_write = os.pipe()
    held_read, held_write = os.pipe()
    with open(body, "wb", closefd=False) as file:
        file.write(json.dumps({"task": list(words), **_facts()}).encode())
    socket.send_fds(connection, [_MESSAGE], [body, 1, 2, status_write, held_read])
    for descriptor in (body, status_write, held_read):
        os.close(descriptor)
    return os.fdopen(status_read, "rb", buffering=0), held_write


def _facts() -> dict[str, Any]:
    """What Slurm has given this process."""
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "groups": os.getgroups(),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "cpus": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
    }


def _end_as(fork: int, answers: Any) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)  # the fork's and its ranks' alone: srun waits for the last of them
    arrived, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in signal.valid_signals() - _OWN:
        with suppress(OSError):
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    while True:
        ready, _, _ = select.select([arrived, answers], [], [])
        if arrived in ready:
            for number in os.read(arrived, 64):
                _signal_tree(fork, number)
        if answers in ready:
            break
    code = int(answers.readline() or b"-9")
    if code < 0:
        signal.set_wakeup_fd(-1)
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _signal_tree(root: int, number: int) -> None:
    for pid in tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found
