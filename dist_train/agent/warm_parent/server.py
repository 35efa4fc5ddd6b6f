"""The warm parent's own loop: one thread, one socket, no operation of torch.

A parallel region in the parent and another one in a fork of it would hang the fork (libgomp).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from typing import NoReturn

from dist_train import env
from dist_train.agent.warm_parent.descriptor_owners import disown_descriptors
from dist_train.agent.warm_parent.forked_rank import RankForked, RankStart, become_rank
from dist_train.agent.warm_parent.process_environ import show_environ
from dist_train.agent.warm_parent.shared_modules import SharedModules, forget_finalizers
from dist_train.jobs.parent_death_signal import end_with_parent

MOST_RANKS = 100  # of one request: the kernel passes 253 descriptors at once (SCM_MAX_FD)
_MESSAGE = b"ranks"


def send_request(connection: socket.socket, starts: list[RankStart], descriptors: list[int]) -> None:
    """Ask for these ranks; descriptors: the go pipe, then stdout and stderr of each rank."""
    body = os.memfd_create("ranks", os.MFD_CLOEXEC)  # a message is limited, an environment is large
    try:
        with open(body, "wb", closefd=False) as file:
            file.write(json.dumps([vars(start) for start in starts]).encode())
        socket.send_fds(connection, [_MESSAGE], [body, *descriptors])
    finally:
        os.close(body)


def serve(connection: socket.socket, agent: int) -> NoReturn:
    """Fork ranks until the agent has gone; in a rank raises RankForked."""
    end_with_parent(agent, signal.SIGKILL)
    connection = _keep_only(connection)
    forget_finalizers()
    shared = SharedModules.of_this_process()
    gc.freeze()  # ranks collect what is theirs: a look at what they share would copy it
    # Of the run, but not of a node: agents end those of their node that ranks have left behind.
    show_environ({name: value for name, value in os.environ.items() if name != env.NODE_RANK}, ())
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, len(_MESSAGE), 253)
        if message != _MESSAGE:
            os._exit(0)
        body, go, *outputs = descriptors
        with open(body, "rb") as file:
            file.seek(0)
            starts = [RankStart(**each) for each in json.load(file)]
        answered, tell = os.pipe()
        middle = os.fork()
        if middle == 0:
            connection.detach()  # ranks close it by its number
            _fork_all(starts, go, outputs, tell, shared)
        os.close(tell)
        for descriptor in (go, *outputs):
            os.close(descriptor)
        with open(answered, "rb") as file:
            pids = file.read()
        # Only after this are the ranks the agent's children.
        os.waitpid(middle, 0)
        connection.sendall(pids or b"[]")


def _fork_all(
    starts: list[RankStart], go: int, outputs: list[int], tell: int, shared: SharedModules
) -> NoReturn:
    """Fork the ranks and end: so they become children of the nearest subreaper, which is the agent."""
    pids = []
    for number, start in enumerate(starts):
        pid = os.fork()
        if pid == 0:
            os.close(tell)
            become_rank(start, outputs[2 * number], outputs[2 * number + 1], go)
            raise RankForked(start.argv, shared)
        pids.append(pid)
    os.write(tell, json.dumps(pids).encode())
    os._exit(0)


def _keep_only(connection: socket.socket) -> socket.socket:
    """Close what the agent has open: its listening socket must end with it."""
    kept = connection.fileno()
    disown_descriptors()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=kept)
