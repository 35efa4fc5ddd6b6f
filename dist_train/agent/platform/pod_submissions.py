"""Which submission of a job on Kubernetes this agent belongs to, and whether that has ended.

Pods replace each other under one submitted object. Submitting again begins a new count of restarts; a pod
that is started after the verdict of its own submission has nothing to do. The launcher does not see the
run directory, so node 0 itself records each submission, by the uid of its object.
"""

from __future__ import annotations

import signal
import socket
from typing import Any

from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.records.verdict_file import code_for_scheduler
from dist_train.agent.settings import Settings
from dist_train.errors import ExitCode
from dist_train.rundir.events import append_event, newest_event, read_events
from dist_train.rundir.failure import Failure, read_failure

# Ends that a later pod may recover from: a node that never came, our own fault, a stop that the script
# did not take part in.
_RECOVERABLE = (ExitCode.UNAVAILABLE, ExitCode.INTERNAL, 128 + signal.SIGTERM)
# After these no kind of job starts a pod again: a start is a new submission. (A Job and a JobSet end at most
# of the script's codes too, a Volcano job does not.)
_FINAL = (
    0,
    ExitCode.USAGE,
    ExitCode.NON_FINITE,
    ExitCode.NO_PROGRESS,
    ExitCode.CANCELLED,
    ExitCode.CONFIG,
)


def earlier_exit(settings: Settings) -> AgentExit | None:
    """Return how this submission has ended; None while it goes on, and where its uid is not known.

    The process's exit code is one after which Kubernetes starts no other pod.
    """
    submitted, last = _newest_submission(settings), newest_event(settings.run)
    if not settings.submission or submitted is None or submitted.get("submission") != settings.submission:
        return None
    if last is None or last["kind"] != "finished" or last["exit_code"] in _RECOVERABLE:
        return None
    code, why = int(last["exit_code"]), f"the run has ended already: {last.get('why', '')}"
    process_code = _process_code(settings, code)
    final = process_code if process_code in _FINAL else int(ExitCode.NO_PROGRESS)
    return AgentExit(code, why, _failure(settings, code), last.get("attempt"), final)


def record(settings: Settings) -> None:
    """Append `submitted` for a submission that is new to the run; node 0 calls it, as the lease's owner."""
    submitted, last = _newest_submission(settings), newest_event(settings.run)
    if submitted is not None and last is not None:
        if not _is_new(settings, submitted, last):
            return
        settings.run.cancel_request.unlink(missing_ok=True)  # it was meant for the last submission
    append_event(
        settings.run,
        "submitted",
        launcher=settings.launcher,
        handle=handle(settings),
        host=socket.gethostname(),
        submission=settings.submission,
        noted_by="agent",
    )


def handle(settings: Settings) -> str:
    """`kubernetes:NAME`: kind and namespace are not known inside a pod."""
    return f"kubernetes:{settings.job.rpartition('.')[0] or settings.job}"


def _is_new(settings: Settings, submitted: dict[str, Any], last: dict[str, Any]) -> bool:
    if settings.submission:
        return bool(submitted.get("submission") != settings.submission)
    return last["kind"] == "finished" and _process_code(settings, int(last["exit_code"])) in _FINAL


def _process_code(settings: Settings, code: int) -> int:
    """The exit code of the processes at that end: for a rank's own 66 to 79 it was another than the run's."""
    return code_for_scheduler(code, _failure(settings, code))


def _failure(settings: Settings, code: int) -> Failure | None:
    """The verdict's failure; an earlier attempt may have left another."""
    failure = read_failure(settings.run) if code != ExitCode.OK else None
    return failure if failure is not None and failure.exit_code == code else None


def _newest_submission(settings: Settings) -> dict[str, Any] | None:
    submitted = list(read_events(settings.run, "submitted"))
    return submitted[-1] if submitted else None
