"""The job object (Job, JobSet, vcjob, TrainJob): its stage, by the status that its controller writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from launchers._kubernetes.state.pods import read_time

Stage = Literal["active", "suspended", "complete", "failed", "aborted"]
_QUEUE = "kueue.x-k8s.io/queue-name"
# Phases of a vcjob; the others are active.
_VOLCANO_STAGES: dict[str, Stage] = {
    "Completed": "complete",
    "Failed": "failed",
    "Terminated": "failed",
    "Aborted": "aborted",
}
_VOLCANO_ACTIVE = ("Pending", "Running", "Restarting")
# Failed comes after the last restart, Terminated by an exit code that no restart can help.
_VOLCANO_REASONS = {"Failed": "ReachedMaxRestarts", "Terminated": "PodFailurePolicy"}


@dataclass(frozen=True)
class JobObject:
    """The job object. `stage` complete, failed, aborted: its controller starts no more pods for it."""

    kind: str
    name: str
    uid: str
    stage: Stage
    reason: str = ""
    message: str = ""
    restarts: int = 0
    created: datetime | None = None
    deleting: bool = False
    queue: str = ""
    # How many pods it consists of; None where the spec does not have it.
    size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether none of its pods will run again."""
        return self.stage in ("complete", "failed", "aborted")

    @property
    def ending(self) -> bool:
        """Whether its end is decided while pods still terminate."""
        return self.stage == "active" and bool(self.reason)


def read_job_object(kind: str, body: Mapping[str, Any]) -> JobObject:
    """Parse the API's object; `kind`: as in --kind."""
    head, spec, status = body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}
    labels = {str(name): str(value) for name, value in (head.get("labels") or {}).items()}
    stage, reason, message = _volcano(status) if kind == "volcano" else _conditions(status, spec)
    return JobObject(
        kind=str(body.get("kind") or kind),
        name=str(head.get("name")),
        uid=str(head.get("uid") or ""),
        stage=stage,
        reason=reason,
        message=message,
        restarts=int(status.get("restarts") or status.get("retryCount") or 0),
        created=read_time(head.get("creationTimestamp")),
        deleting=head.get("deletionTimestamp") is not None,
        queue=labels.get(_QUEUE, "") or (str(spec.get("queue") or "") if kind == "volcano" else ""),
        size=_size(spec),
        labels=labels,
    )


def _size(spec: Mapping[str, Any]) -> int | None:
    """The number of pods: Job, JobSet, vcjob and TrainJob have it in different fields."""
    if "parallelism" in spec:
        return int(spec["parallelism"])
    if jobs := spec.get("replicatedJobs"):
        return sum(
            int(job.get("replicas", 1)) * int(job["template"]["spec"].get("parallelism", 1)) for job in jobs
        )
    if tasks := spec.get("tasks"):
        return sum(int(task.get("replicas", 1)) for task in tasks)
    nodes = (spec.get("trainer") or {}).get("numNodes")
    return None if nodes is None else int(nodes)


def _volcano(status: Mapping[str, Any]) -> tuple[Stage, str, str]:
    state = status.get("state") or {}
    phase = str(state.get("phase") or "Pending")
    stage = _VOLCANO_STAGES.get(phase, "active")
    reason = _VOLCANO_REASONS.get(phase, "" if phase in _VOLCANO_ACTIVE else phase)
    return stage, str(state.get("reason") or reason), str(state.get("message") or "")


def _conditions(status: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[Stage, str, str]:
    """Conditions: Complete of a Job, Completed of a JobSet; Failed and Suspended of all three."""
    true = {
        str(entry.get("type")): (str(entry.get("reason") or ""), str(entry.get("message") or ""))
        for entry in status.get("conditions") or ()
        if entry.get("status") == "True"
    }
    for name, stage in (("Complete", "complete"), ("Completed", "complete"), ("Failed", "failed")):
        if name in true:
            return stage, *true[name]  # type: ignore[return-value]
    if spec.get("suspend") is True or "Suspended" in true:
        return "suspended", *true.get("Suspended", ("", ""))
    # Decided, and pods still terminate: since Kubernetes 1.31 this condition precedes Failed.
    return "active", *true.get("FailureTarget", ("", ""))
