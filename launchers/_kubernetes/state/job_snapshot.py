"""One read of a job from the API server: the job object, its pods, and events or queue conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dist_train.errors import UnavailableError
from launchers._kubernetes.api.api_errors import Forbidden, MissingApi
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import EVENT, JOB, POD, POD_GROUP, WORKLOADS, Kind
from launchers._kubernetes.manifest.jobset import child_job
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_object import JobObject, read_job_object
from launchers._kubernetes.state.pods import Pod, newest_of_nodes, read_pod, read_time

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FAILED_BY_RULE = "FailJobSetFailurePolicyAction"


@dataclass(frozen=True)
class JobSnapshot:
    """The job at one moment. `notes`: messages of events and of queue conditions, the newest first."""

    job_object: JobObject | None
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    now: datetime


def take_snapshot(cluster: Cluster, job: Job, run_label: str | None) -> JobSnapshot:
    """Read the object, its pods and, where these do not explain the state, events and queue conditions."""
    body = cluster.get(job.api_kind, job.name)
    job_object = None if body is None else read_job_object(job.kind, body)
    if job_object is not None and job_object.reason == _FAILED_BY_RULE:
        job_object = _with_reason_of_child(cluster, job, job_object)
    run_label = job_object.labels.get(RUN_LABEL, run_label) if job_object is not None else run_label
    pods = list_pods(cluster, run_label)
    notes = [] if job_object is None or job_object.finished else _notes(cluster, job, job_object, pods)
    return JobSnapshot(job_object, tuple(pods), tuple(notes), cluster.now())


def _with_reason_of_child(cluster: Cluster, job: Job, job_object: JobObject) -> JobObject:
    """Take the reason from the JobSet's Job: the JobSet only has that a failure policy rule ended it."""
    try:
        body = cluster.get(JOB, child_job(job.name))
    except UnavailableError:
        return job_object
    child = read_job_object("job", body) if body is not None else job_object
    return replace(job_object, reason=child.reason) if child.stage == "failed" else job_object


def label_of_job(cluster: Cluster, job: Job) -> str | None:
    """The run label of the object itself, for a run without a record."""
    body = cluster.get(job.api_kind, job.name)
    return None if body is None else read_job_object(job.kind, body).labels.get(RUN_LABEL)


def list_pods(cluster: Cluster, run_label: str | None) -> list[Pod]:
    """List the pods of the run; none where its label is not known."""
    if run_label is None:
        return []
    return [read_pod(body) for body in cluster.find(POD, f"{RUN_LABEL}={run_label}").items]


def _notes(cluster: Cluster, job: Job, job_object: JobObject, pods: list[Pod]) -> list[str]:
    newest = newest_of_nodes(pods)
    complete = bool(newest) and len(newest) >= (job_object.size or 1)
    if complete and not any(_has_no_reason(pod) for pod in newest.values()):
        return []
    notes = list(_admission(cluster, job, job_object)) if not newest else []
    return [*notes, *_warnings(cluster, job, job_object, newest.values())]


def _has_no_reason(pod: Pod) -> bool:
    """Whether only events can explain the pod's state: a volume that cannot be mounted has no condition."""
    return pod.container.waiting in ("ContainerCreating", "PodInitializing") or (
        pod.phase == "Pending" and bool(pod.host) and not pod.container.waiting
    )


def _admission(cluster: Cluster, job: Job, job_object: JobObject) -> Iterable[str]:
    """The conditions of Kueue's Workload that are not fulfilled, or those of Volcano's PodGroup."""
    if job.kind == "volcano":
        return _pod_group_notes(cluster, job_object)
    kinds: tuple[Kind, ...] = WORKLOADS if job_object.queue else ()
    for kind in kinds:
        try:
            found = cluster.find(kind).items
        except MissingApi:
            continue
        except UnavailableError:
            return []
        return [
            text
            for body in found
            if _owned_by(body, job_object.uid)
            for text in _condition_texts(kind.needs, body)
        ]
    if job_object.queue and job_object.stage == "suspended":
        return ["Kueue is not installed here, and nothing else starts a suspended job of a queue"]
    return []


def _pod_group_notes(cluster: Cluster, job_object: JobObject) -> Iterable[str]:
    """Volcano creates no pod before its PodGroup is in the queue; only events have the reason."""
    try:
        groups = [body for body in cluster.find(POD_GROUP).items if _owned_by(body, job_object.uid)]
    except UnavailableError:
        return []
    if not groups:
        return (
            []
            if job_object.restarts
            else [f"Volcano has not started it; is there a queue {job_object.queue}?"]
        )
    group, name = groups[0], str(groups[0]["metadata"]["name"])
    if texts := list(_condition_texts(POD_GROUP.needs, group)):
        return texts
    phase = str((group.get("status") or {}).get("phase") or "Pending")
    message = _newest_event(cluster, name, job_object.created or _LONG_AGO)
    return [
        f"Volcano: its PodGroup is {phase} in the queue {job_object.queue}{f': {message}' if message else ''}"
    ]


def _newest_event(cluster: Cluster, name: str, since: datetime) -> str:
    """The message of an object's newest event, of any type: Volcano reports its refusals as Normal."""
    try:
        events = cluster.find(EVENT, fields=f"involvedObject.name={name}").items
    except UnavailableError:
        return ""
    newest = max((body for body in events if _event_time(body) >= since), key=_event_time, default=None)
    return "" if newest is None else str(newest.get("message") or newest.get("reason") or "")


def _owned_by(body: Mapping[str, Any], uid: str) -> bool:
    owners = (body.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _condition_texts(source: str, body: Mapping[str, Any]) -> Iterable[str]:
    for entry in (body.get("status") or {}).get("conditions") or ():
        name, fulfilled = entry.get("type"), entry.get("status") == "True"
        bad = fulfilled if name in ("Evicted", "Unschedulable", "Preempted") else not fulfilled
        if bad and name in ("QuotaReserved", "Admitted", "Evicted", "Unschedulable", "Preempted"):
            reason = f" ({entry['reason']})" if entry.get("reason") else ""
            yield f"{source}: {entry.get('message') or name}{reason}"


def _warnings(cluster: Cluster, job: Job, job_object: JobObject, pods: Iterable[Pod]) -> list[str]:
    """Messages of Warning events of the job, its child jobs and its pods, the newest first."""
    names = {pod.name for pod in pods}
    try:
        events = cluster.find(EVENT, fields="type=Warning").items
    except Forbidden as error:
        return [f"the reason is not known: {error.what}"]
    found: dict[str, datetime] = {}
    for body in events:
        about = body.get("involvedObject") or {}
        name = str(about.get("name") or "")
        ours = name == job.name or name in names
        child = about.get("kind") == "Job" and name.startswith(f"{job.name}-")
        at = _event_time(body)
        if body.get("type") == "Warning" and (ours or child) and at >= (job_object.created or _LONG_AGO):
            text = f"{body.get('reason')}: {body.get('message')}"
            found[text] = max(at, found.get(text, _LONG_AGO))
    return sorted(found, key=lambda text: found[text], reverse=True)


def _event_time(body: Mapping[str, Any]) -> datetime:
    series = body.get("series") or {}
    times = (series.get("lastObservedTime"), body.get("lastTimestamp"), body.get("eventTime"))
    made = (body.get("metadata") or {}).get("creationTimestamp")
    return max((at for text in (*times, made) if (at := read_time(text)) is not None), default=_LONG_AGO)
