"""Follow a job to its end: the log of pod 0, changes of the job's state, how it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from dist_train.errors import ExitCode, NotFoundError, UnavailableError
from dist_train.jobs import JobState
from dist_train.jobs.polling import Backoff
from dist_train.rundir.outcome_text import HeadlinesOnly
from launchers._kubernetes.follow.follow_output import FollowOutput
from launchers._kubernetes.follow.log_tails import LogTails
from launchers._kubernetes.follow.printed_states import PrintedStates
from launchers._kubernetes.runner.torchx_session import TorchxSession
from launchers._kubernetes.state.job_status import JobStatus
from launchers._kubernetes.state.pod_watch import RETRY_FIRST_S, RETRY_LONGEST_S

# Phases of a job that has not ended.
ACTIVE_PHASES = ("pending", "running", "requeued")
_TICK_S = 0.2
# Time from the job's end to the last line of its log.
_DRAIN_S = 15.0
_BEHIND_S = 0.02


class JobFollower:
    """Prints node 0's log to stdout, and every change of the job's state to stderr."""

    def __init__(self, session: TorchxSession, query: Callable[[], JobStatus]) -> None:
        self._session = session
        self._query = query
        self._blocks = HeadlinesOnly()
        self._output = FollowOutput()
        self._states = PrintedStates(session.job.name)
        self._was_active = False

    def run(self) -> JobStatus:
        """Follow until the job has ended; wait for an API server that is unreachable."""
        self._watch()
        tails = LogTails({"": lambda: _lines_of_node_0(self._session)})
        try:
            while True:
                found = self._query()
                over = found.state.phase not in ACTIVE_PHASES and found.state.phase != "unknown"
                if over:
                    found = replace(found, state=self._with_exit_code(found.state))
                self._print_state(found.state)
                if over:
                    self._drain(tails)
                    return found
                self._was_active = self._was_active or found.state.phase in ACTIVE_PHASES
                self._print_lines(tails, time.monotonic() + _TICK_S)
        finally:
            self._session.close()
            tails.stop()
            self._output.close()

    def _with_exit_code(self, state: JobState) -> JobState:
        """Give a job that was active and is gone the exit code of a cancelled one, for `status` later."""
        if state.exit_code is not None or state.phase != "stopped" or not self._was_active:
            return state
        return replace(state, exit_code=exit_code_of(state))

    def _watch(self) -> None:
        try:
            self._session.watch()
        except UnavailableError:
            return  # without a watch the state is polled

    def _drain(self, tails: LogTails) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while not tails.over and time.monotonic() < deadline:
            self._print_lines(tails, min(deadline, time.monotonic() + _TICK_S))

    def _print_lines(self, tails: LogTails, until: float) -> None:
        while (line := tails.take(max(0.0, until - time.monotonic()))) is not None:
            if self._blocks.shows(line):
                self._output.line(line)
            while self._output.is_behind and time.monotonic() < until:
                time.sleep(_BEHIND_S)
            if time.monotonic() >= until:
                break

    def _print_state(self, state: JobState) -> None:
        if (line := self._states.line(state, time.monotonic())) is not None:
            self._output.notice(line)


def _lines_of_node_0(session: TorchxSession) -> Iterator[str]:
    """Yield pod 0's lines; while the server is unreachable, try again."""
    backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
    while not session.pod_watch.stopped:
        try:
            yield from session.log_lines(0, follow=True)
            return
        except NotFoundError:
            return
        except UnavailableError:
            session.pod_watch.wait(session.pod_watch.count, backoff.wait_s)
            backoff.grow()


def exit_code_of(state: JobState) -> int:
    """The exit code of `launch`; a job that was deleted counts as cancelled."""
    if state.exit_code is not None:
        return state.exit_code
    return int(ExitCode.CANCELLED if state.phase == "stopped" else ExitCode.UNAVAILABLE)
