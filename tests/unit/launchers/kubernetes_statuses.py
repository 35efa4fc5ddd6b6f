"""The status of one job, from objects as the API server has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kubernetes_bodies import Body, pod

from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_object import read_job_object
from launchers._kubernetes.state.job_snapshot import JobSnapshot
from launchers._kubernetes.state.job_status import JobStatus, status_of
from launchers._kubernetes.state.pods import read_pod

DIGITS = Job("job", "default", "digits", "here")
FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded", "message": "Job has reached the limit"}


def seen(
    top: Body | None, *pods: Body, notes: tuple[str, ...] = (), gone: tuple[Body, ...] = ()
) -> JobStatus:
    """The status at 10:10; `gone`: deleted pods that a watch has seen."""
    snapshot = JobSnapshot(
        None if top is None else read_job_object("job", top),
        tuple(read_pod(body) for body in pods),
        notes,
        datetime(2026, 11, 21, 10, 10, tzinfo=UTC),
    )
    found = status_of(DIGITS, snapshot, [read_pod(body) for body in gone])
    assert found is not None
    assert JobStatus.from_text(found.to_text()) == found, "nothing is lost on the way through TorchX"
    return found


def waiting(name: str, reason: str, message: str = "", node: int = 0, **more: Any) -> Body:
    return pod(name, node, state={"waiting": {"reason": reason, "message": message}}, host="gpu-1", **more)
