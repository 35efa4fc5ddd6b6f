"""Following a job to its end: what pod 0 shows, where the job is, and how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from dist_train.errors import ExitCode, NotFoundError, UnavailableError
from dist_train.jobs import JobState
from dist_train.jobs.pace import Backoff
from dist_train.rundir.report import HeadlinesOnly
from launchers._kubernetes.follow.tails import Tails
from launchers._kubernetes.runner.session import Session
from launchers._kubernetes.state.news import RETRY_FIRST_S, RETRY_LONGEST_S
from launchers._kubernetes.state.standing import Standing
from launchers._kubernetes.terminal import say

AT_WORK = ("pending", "running", "requeued")
_TICK_S = 0.2
# From the job's end to the last line of its log.
_DRAIN_S = 15.0


class Follower:
    """Shows node 0's log on stdout, and says on stderr whenever the job is somewhere else."""

    def __init__(self, session: Session, ask: Callable[[], Standing]) -> None:
        self._session = session
        self._ask = ask
        self._blocks = HeadlinesOnly()
        self._said = ""
        self._was_at_work = False

    def run(self) -> Standing:
        """Until the job has ended; an API server that is away is waited for."""
        self._watch()
        tails = Tails({"": lambda: _patiently(self._session)})
        try:
            while True:
                found = self._ask()
                over = found.state.phase not in AT_WORK and found.state.phase != "unknown"
                if over:
                    found = replace(found, state=self._settled(found.state))
                self._say(found.state)
                if over:
                    self._drain(tails)
                    return found
                self._was_at_work = self._was_at_work or found.state.phase in AT_WORK
                self._show(tails, time.monotonic() + _TICK_S)
        finally:
            self._session.close()
            tails.stop()

    def _settled(self, state: JobState) -> JobState:
        """What was at work a moment ago and is gone was deleted: `status` later knows the code by this."""
        if state.exit_code is not None or state.phase != "stopped" or not self._was_at_work:
            return state
        return replace(state, exit_code=code_of(state))

    def _watch(self) -> None:
        try:
            self._session.watch()
        except UnavailableError:
            return  # what cannot be watched is asked for

    def _drain(self, tails: Tails) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while not tails.over and time.monotonic() < deadline:
            self._show(tails, min(deadline, time.monotonic() + _TICK_S))

    def _show(self, tails: Tails, until: float) -> None:
        while (line := tails.take(max(0.0, until - time.monotonic()))) is not None:
            if self._blocks.shows(line):
                sys.stdout.write(line + "\n")
            if time.monotonic() >= until:
                break
        sys.stdout.flush()

    def _say(self, state: JobState) -> None:
        text = f"job {self._session.job.name} is {state.phase}" + (
            f": {state.detail}" if state.detail else ""
        )
        if state.next:
            text += f"  ({state.next[0]})"
        if text != self._said and state.exit_code != 0:
            say(text)
        self._said = text


def _patiently(session: Session) -> Iterator[str]:
    """Pod 0's lines; the first question may meet a server that is away."""
    backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
    while not session.news.stopped:
        try:
            yield from session.log_lines(0, follow=True)
            return
        except NotFoundError:
            return
        except UnavailableError:
            session.news.wait(session.news.count, backoff.wait_s)
            backoff.grow()


def code_of(state: JobState) -> int:
    """What `launch` returns; a job that somebody deleted was cancelled."""
    if state.exit_code is not None:
        return state.exit_code
    return int(ExitCode.CANCELLED if state.phase == "stopped" else ExitCode.UNAVAILABLE)
