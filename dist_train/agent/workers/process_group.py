"""A rank's process group at the rank's end: what the rank has left running is killed.

All but multiprocessing's resource trackers, which end by themselves (dist_train/jobs/orphans.py).
"""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import suppress

from dist_train.jobs.orphans import (
    command_line,
    is_resource_tracker,
    is_torch_tracker,
    let_tracker_end,
    running_processes,
)
from dist_train.jobs.process_identity import started_at

_MOST_SHOWN = 100
_EXEC_S = 0.05
# A fork has its rank's title; multiprocessing starts its servers and children by `-c`; torch.compile has its
# pool's process end by itself.
_NOT_OF_THE_SCRIPT = ("dist-train rank=", "from multiprocessing.", "dist_train.agent.")
_TORCH_COMPILER = "torch/_inductor/compile_worker"


def end_group(group: int) -> list[str]:
    """SIGKILL a rank's process group: the rank and its loader workers. Only before the rank is reaped.

    Args:
        group: the rank's pid, which no other process can have until then.

    Returns:
        The command lines of programs that the script had started, and that still ran.
    """
    members = _members(group)
    _wait_for_exec(members)
    left = [program for pid in members if pid != group and (program := program_left(pid))]
    trackers = {pid for pid in members if is_resource_tracker(pid)}
    if not trackers:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        return left
    ended: set[int] = set()
    # Until there is none that was not there before: a process may fork until its signal reaches it.
    while new := [pid for pid in _members(group) if pid not in ended | trackers]:
        for pid in new:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(new)
    for pid in trackers:
        let_tracker_end(pid)
    return left


def program_left(pid: int) -> str | None:
    """Return the command line of a program that a script has started, cut; None where a library has."""
    words = command_line(pid)
    if (
        not words
        or is_torch_tracker(words)
        or any(word.startswith(_NOT_OF_THE_SCRIPT) or _TORCH_COMPILER in word for word in words)
    ):
        return None
    text = shlex.join(words)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _wait_for_exec(members: list[int]) -> None:
    """Wait until each is the program that it is to be: a tracker only just started is none yet."""
    deadline = time.monotonic() + _EXEC_S
    while time.monotonic() < deadline:
        if all(command_line(pid) or started_at(pid) is None for pid in members):
            return
        time.sleep(0.001)


def _members(group: int) -> list[int]:
    found = []
    for pid in running_processes():
        with suppress(OSError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found
