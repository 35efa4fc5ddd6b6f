"""Which submission of a job on Kubernetes this start belongs to, and whether that has come to its end.

Pods take each other's places under one object. What was submitted anew begins a new count of restarts;
a pod that comes after the verdict of its own submission has nothing to do. Nobody outside sees the
run directory, so node 0 itself notes each submission, by the uid of its object.
"""

from __future__ import annotations

import signal
import socket
from typing import Any

from dist_train.agent.recorder import code_for_scheduler
from dist_train.agent.settings import KUBERNETES, Settings
from dist_train.agent.termination import End
from dist_train.errors import ExitCode
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.failure import Failure, read_failure

# What pods that come after it may mend: a node that never came, our own fault, a stop that the script
# did not take part in.
_MAY_GO_ON = (ExitCode.UNAVAILABLE, ExitCode.INTERNAL, 128 + signal.SIGTERM)
# After these Kubernetes starts no pod anew (the Job's podFailurePolicy): a start is a new submission.
_NEVER_AGAIN = (0, ExitCode.USAGE, ExitCode.NO_PROGRESS, ExitCode.CANCELLED, ExitCode.CONFIG)


def ended(told: Settings) -> End | None:
    """How this submission has ended; None while it goes on, and where its uid is not known.

    The pod leaves with a code after which Kubernetes starts no other.
    """
    submitted, last = _look(told)
    if not told.submission or submitted is None or submitted.get("submission") != told.submission:
        return None
    if last["kind"] != "finished" or last["exit_code"] in _MAY_GO_ON:
        return None
    code, why = int(last["exit_code"]), f"the run has ended already: {last.get('why', '')}"
    told_before = _told_kubernetes(told, code)
    leaves_with = told_before if told_before in _NEVER_AGAIN else int(ExitCode.NO_PROGRESS)
    return End(code, why, _failure(told, code), last.get("attempt"), leaves_with)


def begin(told: Settings) -> None:
    """Node 0, with the lease in its hand: note a submission that the run has not seen."""
    submitted, last = _look(told)
    if submitted is not None:
        if not _is_new(told, submitted, last):
            return
        (told.run.control / "cancel").unlink(missing_ok=True)  # it was meant for the last one
    append_event(
        told.run,
        "submitted",
        launcher=KUBERNETES,
        handle=handle(told),
        host=socket.gethostname(),
        submission=told.submission,
    )


def handle(told: Settings) -> str:
    """`kubernetes:NAME`: kind and namespace are not known inside a pod."""
    return f"{KUBERNETES}:{told.job.rpartition('.')[0] or told.job}"


def _is_new(told: Settings, submitted: dict[str, Any], last: dict[str, Any]) -> bool:
    if told.submission:
        return bool(submitted.get("submission") != told.submission)
    return last["kind"] == "finished" and _told_kubernetes(told, int(last["exit_code"])) in _NEVER_AGAIN


def _told_kubernetes(told: Settings, code: int) -> int:
    """What the processes left with at that end: of a rank's own 66 to 79 it was another code."""
    return code_for_scheduler(told.launcher, code, _failure(told, code))


def _failure(told: Settings, code: int) -> Failure | None:
    """That of the verdict; an earlier attempt may have left another."""
    failure = read_failure(told.run) if code != ExitCode.OK else None
    return failure if failure is not None and failure.exit_code == code else None


def _look(told: Settings) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The newest `submitted`, and the newest event of all."""
    submitted, last = None, dict[str, Any]()
    for last in read_events(told.run):
        if last["kind"] == "submitted":
            submitted = last
    return submitted, last
