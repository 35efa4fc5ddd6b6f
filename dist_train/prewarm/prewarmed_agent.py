"""The prewarmed process as its command sees it: begun at the command's start, taken over as agents, or ended.

It is a child of the command, ends with it (PR_SET_PDEATHSIG), and prints nothing before it is an agent. Only
then has it the run's id in its environment, also in /proc/PID/environ.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

from dist_train.prewarm.agent_handle import AgentProcess, ForkedAgent
from dist_train.prewarm.early_variables import first_difference
from dist_train.prewarm.import_choice import EarlyImport, choose_import

PREWARM = "--prewarm"  # of `python -m dist_train.agent`: DESCRIPTOR PARENT_PID config|script
MESSAGE = b"agents"
_THREADS_VARIABLE = "OMP_NUM_THREADS"
# /proc/PID/environ has the size of the environment at exec: room for the variables of a node.
_PADDING = "DIST_TRAIN_PREWARM_PADDING"
_PADDING_BYTES = 8192
# What `ps` shows has the size of the arguments at exec, and titles of agents and ranks name the run's folder.
_TITLE_PADDING = " " * 512
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class AgentStart:
    """One agent to become.

    Attributes:
        argv: the arguments after `python -P -m dist_train.agent`.
        environ: its whole environment.
        parent: the pid of its launcher.
        descriptor: the number at which it finds the listening socket; None where it has none.
    """

    argv: list[str]
    environ: dict[str, str]
    parent: int
    descriptor: int | None


class PrewarmedAgent:
    """The process, from its begin until it is taken over.

    Args:
        chosen: what it imports torch for.
    """

    def __init__(self, chosen: EarlyImport) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection = ours
        self._environ = {**os.environ, _THREADS_VARIABLE: str(chosen.threads)}
        kind = "config" if chosen.for_config else "script"
        # What the import prints is the agent's to print: it shows it once it is one.
        held = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdout", "stderr")]
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "dist_train.agent"),
                    *(PREWARM, str(theirs.fileno()), str(os.getpid()), kind, _TITLE_PADDING),
                ],
                env={**self._environ, _PADDING: "x" * _PADDING_BYTES},
                stdin=subprocess.DEVNULL,
                stdout=held[0],
                stderr=held[1],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            theirs.close()
            for descriptor in held:
                os.close(descriptor)
        self._pids: list[int] | None = None
        self._others = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fits(self, environ: Mapping[str, str], threads: int) -> bool:
        """Whether an agent with this environment is what this process can become: see early_variables."""
        agents = {**environ, _THREADS_VARIABLE: str(threads)}
        return first_difference(self._environ, agents) is None and self._process.poll() is None

    def become(self, starts: Sequence[AgentStart], listener: int) -> list[AgentProcess] | None:
        """Make it the first of these agents, and forks of it the others; None if it has ended.

        Args:
            listener: the descriptor of the listening socket.
        """
        body = os.memfd_create("agents", os.MFD_CLOEXEC)  # a message is limited, an environment is large
        try:
            with open(body, "wb", closefd=False) as file:
                file.write(json.dumps([asdict(start) for start in starts]).encode())
            self._others = len(starts) - 1
            if self._others:
                _adopt_orphans(True)
            socket.send_fds(self._connection, [MESSAGE], [body, 1, 2, listener])
        except OSError:
            self.end()
            return None
        finally:
            os.close(body)
        if not self._others:
            self._connection.close()  # no answer will come
        others = [ForkedAgent(lambda at=at: self._pid_of(at)) for at in range(self._others)]  # type: ignore[misc]
        return [self._process, *others]

    def end(self) -> None:
        """End it, whatever it does."""
        self._connection.close()
        if self._others and self._pids is None:
            _adopt_orphans(False)
        self._process.kill()
        self._process.wait()

    def _pid_of(self, other: int) -> int | None:
        """The pid of an agent that was to be forked; None while it is not known, 0 if it will never be."""
        if self._pids is None:
            if not select.select([self._connection], [], [], 0)[0]:
                return None
            answer = b""
            with suppress(OSError):
                answer = self._connection.recv(65536)
            self._pids = json.loads(answer or b"[]")
            _adopt_orphans(False)
            self._connection.close()
        return self._pids[other] if other < len(self._pids) else 0


_begun: list[PrewarmedAgent] = []


@contextmanager
def prewarming(words: Sequence[str]) -> Iterator[None]:
    """Begin the import for this command line if that may help; whatever is not taken over ends with it."""
    chosen = choose_import(words, os.environ)
    if chosen is not None:
        with suppress(OSError):  # the agent's own start says what is wrong
            _begun.append(PrewarmedAgent(chosen))
    try:
        yield
    finally:
        end_prewarmed()


def end_prewarmed() -> None:
    """End the process that was begun, if it was not taken over."""
    while _begun:
        _begun.pop().end()


def take_prewarmed(
    starts: Sequence[AgentStart], listener: int, threads: int, device: str
) -> list[AgentProcess] | None:
    """Turn the process that was begun into these agents; None where each is to be started as a new process.

    Args:
        listener: the descriptor of the listening socket, the same in this process and in node 0's agent.
        threads: per rank.
        device: of the ranks.
    """
    if not (_begun and device == "cpu" and all(_begun[0].fits(start.environ, threads) for start in starts)):
        end_prewarmed()
        return None
    return _begun.pop().become(starts, listener)


def _adopt_orphans(adopt: bool) -> None:
    """Become the parent of descendants whose own parent ends (prctl(2)), only while agents are forked."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
