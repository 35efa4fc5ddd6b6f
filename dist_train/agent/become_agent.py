"""`python -P -m dist_train.agent --prewarm …`: import torch while the command plans, then be its agents.

The process becomes node 0's agent; those of other simulated nodes are its forks, made before it has a thread.
Where the import fails it becomes the agent by exec, so that the failure is reported as it always is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from dist_train.agent.warm_parent.forked_rank import is_child_of
from dist_train.agent.warm_parent.process_reset import reset_process
from dist_train.agent.workers.process_title import set_title
from dist_train.agent.workers.start_method import import_for_ranks
from dist_train.jobs.parent_death_signal import end_with_parent
from dist_train.prewarm.agent_handle import IMPORT_TITLE
from dist_train.prewarm.prewarmed_agent import MESSAGE, PREWARM, AgentStart


def become_agent(words: Sequence[str]) -> list[str]:
    """Import, wait for what to be, and be it; returns the agent's arguments, in each of the agents.

    Args:
        words: this process's own arguments. Those of an agent are returned as they are.
    """
    if list(words[:1]) != [PREWARM]:
        return list(words)
    connection, command, kind = socket.socket(fileno=int(words[1])), int(words[2]), words[3]
    end_with_parent(command, signal.SIGKILL)
    set_title(f"{IMPORT_TITLE}{command}")
    imported = True
    try:
        import_for_ranks(kind)
    except Exception:
        imported = False  # said by the agent, which tries it again
    message, descriptors, _, _ = socket.recv_fds(connection, len(MESSAGE), 8)
    if message != MESSAGE:
        os._exit(0)  # nothing is launched
    body, stdout, stderr, listener = descriptors
    with open(body, "rb") as file:
        file.seek(0)
        starts = [AgentStart(**each) for each in json.load(file)]
    start, streams = _fork_others(starts, connection), {1: stdout, 2: stderr}
    printed = {target: _printed(target) for target in streams}
    connection.detach()  # closed by number below
    kept = {} if start.descriptor is None else {start.descriptor: listener}
    reset_process(start.environ, os.getcwd(), {**streams, **kept})
    if not imported:
        os.execve(sys.executable, [sys.executable, "-P", "-m", "dist_train.agent", *start.argv], os.environ)
    for target, text in printed.items():
        _print(target, text)
    sys.argv[1:] = start.argv
    return start.argv


def _fork_others(starts: Sequence[AgentStart], connection: socket.socket) -> AgentStart:
    """Fork the agents of the other nodes, as children of the command; returns what this process is to be."""
    first, *others = starts
    if not others:
        return first
    answered, tell = os.pipe()
    middle = os.fork()
    if middle == 0:
        pids = []
        for other in others:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                if not is_child_of(other.parent):
                    os._exit(1)
                return other
            pids.append(pid)
        os.write(tell, json.dumps(pids).encode())
        os._exit(0)
    os.close(tell)
    with open(answered, "rb") as file:
        pids_text = file.read()
    # Only after this are they the command's children.
    os.waitpid(middle, 0)
    connection.sendall(pids_text or b"[]")
    return first


def _print(descriptor: int, text: bytes) -> None:
    """Print all of it; what cannot be printed (a full disk, a closed pipe) ends no agent."""
    with suppress(OSError):
        while text:
            text = text[os.write(descriptor, text) :]


def _printed(descriptor: int) -> bytes:
    """What this process has written there, which the command holds back in memory."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
