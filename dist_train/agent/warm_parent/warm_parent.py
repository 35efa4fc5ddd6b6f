"""The agent's handle of its warm parent: start it before any thread, ask it for the ranks of an attempt."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from dist_train.agent.warm_parent.forked_rank import RankStart
from dist_train.agent.warm_parent.rank_child import ForkedProcess
from dist_train.agent.warm_parent.server import MOST_RANKS, send_request, serve
from dist_train.prewarm.early_variables import early_variables, first_difference

logger = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36
_ANSWER_S = 10.0  # a fork of a rank takes some 0.02 s


class ForkFailed(Exception):
    """The warm parent has not forked the ranks: none of them runs."""


class WarmParent:
    """A process that has imported torch, and forks ranks.

    Args:
        pid: its process id.
        connection: to it; owned from now on.
        early: the variables that were read before, with their values.
    """

    def __init__(self, pid: int, connection: socket.socket, early: Mapping[str, str]) -> None:
        self.pid = pid
        self._connection = connection
        self._early = early

    @classmethod
    def start(cls, environ: Mapping[str, str], prepare: Callable[[], None]) -> WarmParent:
        """Fork it from this process, which must have one thread; raises RankForked in the ranks.

        Args:
            prepare: called in it first.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent, early = os.getpid(), early_variables(environ)
        pid = os.fork()
        if pid == 0:
            prepare()
            serve(theirs, agent)
        theirs.close()
        return cls(pid, ours, early)

    def reason_to_spawn(self, starts: Sequence[RankStart]) -> str | None:
        """Say why these ranks cannot be forks of it; None where they can."""
        for start in starts:
            if name := first_difference(self._early, start.environ):
                return f"{name} of a rank is not what it was when torch was imported"
        return None

    def start_ranks(
        self, starts: Sequence[RankStart], on_start: Callable[[int], None]
    ) -> list[ForkedProcess]:
        """Fork one rank for each of `starts`; raises ForkFailed if it cannot, and then none runs.

        Args:
            on_start: called with the pid of each rank before it goes on.
        """
        go_read, go_write = os.pipe()
        found: list[ForkedProcess] = []
        try:
            for first in range(0, len(starts), MOST_RANKS):
                found += self._fork_some(starts[first : first + MOST_RANKS], go_read)
            for each in found:
                on_start(each.pid)
            os.write(go_write, b"g" * len(found))
        except BaseException:
            for each in found:
                each.close_outputs()
            raise
        finally:
            # Closed without a word: ranks that nobody knows end themselves.
            os.close(go_read)
            os.close(go_write)
        return found

    def close(self) -> None:
        """End it, whatever it does."""
        self._connection.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it may be stopped
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _fork_some(self, starts: Sequence[RankStart], go: int) -> list[ForkedProcess]:
        pipes = [(os.pipe(), os.pipe()) for _ in starts]
        outputs = [end for out, err in pipes for end in (out[1], err[1])]
        try:
            pids = self._fork(starts, [go, *outputs])
        except BaseException:
            for out, err in pipes:
                os.close(out[0])
                os.close(err[0])
            raise
        finally:
            for descriptor in outputs:
                os.close(descriptor)
        return [ForkedProcess(pid, out[0], err[0]) for pid, (out, err) in zip(pids, pipes, strict=True)]

    def _fork(self, starts: Sequence[RankStart], descriptors: list[int]) -> list[int]:
        _adopt_orphans(True)
        try:
            send_request(self._connection, list(starts), descriptors)
            if not select.select([self._connection], [], [], _ANSWER_S)[0]:
                raise ForkFailed(f"no answer in {_ANSWER_S:g} s")
            pids = json.loads(self._connection.recv(65536) or b"[]")
        except OSError as error:
            raise ForkFailed(f"its process {self.pid} does not answer: {error.strerror}") from error
        finally:
            _adopt_orphans(False)
        if len(pids) != len(starts):
            raise ForkFailed(f"its process {self.pid} has ended")
        return [int(pid) for pid in pids]


def _adopt_orphans(adopt: bool) -> None:
    """Become the parent of descendants whose own parent ends (prctl(2)), only as long as ranks are forked."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
