"""The object that is the job (Job, JobSet, vcjob, TrainJob): how far its controller has come with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from launchers._kubernetes.state.pods import read_time

Stage = Literal["active", "suspended", "complete", "failed", "aborted"]
_QUEUE = "kueue.x-k8s.io/queue-name"
# vcjob's phases; the others are active.
_VOLCANO: dict[str, Stage] = {
    "Completed": "complete",
    "Failed": "failed",
    "Terminated": "failed",
    "Aborted": "aborted",
}
_VOLCANO_GOES_ON = ("Pending", "Running", "Restarting")
# Why: Failed comes after the last restart, Terminated by an exit code that no restart helps.
_VOLCANO_ENDS = {"Failed": "ReachedMaxRestarts", "Terminated": "PodFailurePolicy"}


@dataclass(frozen=True)
class Top:
    """The job itself. `stage` complete, failed, aborted: its controller does no more for it."""

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
    # How many pods it is made of; None where its form does not tell.
    size: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether nothing of it will run again by itself."""
        return self.stage in ("complete", "failed", "aborted")

    @property
    def ending(self) -> bool:
        """Whether its end is decided, and pods still leave."""
        return self.stage == "active" and bool(self.reason)


def read_top(kind: str, body: Mapping[str, Any]) -> Top:
    """From the API's object; `kind` as --kind has it."""
    head, spec, status = body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}
    labels = {str(name): str(value) for name, value in (head.get("labels") or {}).items()}
    stage, reason, message = _volcano(status) if kind == "volcano" else _conditions(status, spec)
    return Top(
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
    """Job, JobSet, vcjob and TrainJob each say it in another place."""
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
    stage = _VOLCANO.get(phase, "active")
    reason = _VOLCANO_ENDS.get(phase, "" if phase in _VOLCANO_GOES_ON else phase)
    return stage, str(state.get("reason") or reason), str(state.get("message") or "")


def _conditions(status: Mapping[str, Any], spec: Mapping[str, Any]) -> tuple[Stage, str, str]:
    """Job says Complete, JobSet Completed; all three say Failed and Suspended."""
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
    # Decided, and pods still end: Kubernetes >= 1.31 says why before it says Failed.
    return "active", *true.get("FailureTarget", ("", ""))
