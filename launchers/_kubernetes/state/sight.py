"""What the API server says of a job at one moment: the object, its pods, and who holds them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dist_train.errors import UnavailableError
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import EVENT, JOB, POD, POD_GROUP, WORKLOADS, Kind
from launchers._kubernetes.api.refusals import Forbidden, MissingApi
from launchers._kubernetes.manifest.jobset import child_job
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import Pod, newest_of_nodes, read_pod, read_time
from launchers._kubernetes.state.top import Top, read_top

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_BY_RULE = "FailJobSetFailurePolicyAction"


@dataclass(frozen=True)
class Sight:
    """`notes` are others' own words (events, a queue's conditions), the newest first."""

    top: Top | None
    pods: tuple[Pod, ...]
    notes: tuple[str, ...]
    now: datetime


def look(cluster: Cluster, job: Job, run_label: str | None) -> Sight:
    """Ask for the object, its pods and, where these do not tell, for events and the queue's conditions."""
    body = cluster.get(job.top, job.name)
    top = None if body is None else read_top(job.kind, body)
    if top is not None and top.reason == _BY_RULE:
        top = _with_the_jobs_reason(cluster, job, top)
    run_label = top.labels.get(RUN_LABEL, run_label) if top is not None else run_label
    pods = list_pods(cluster, run_label)
    notes = [] if top is None or top.finished else _notes(cluster, job, top, pods)
    return Sight(top, tuple(pods), tuple(notes), cluster.now())


def _with_the_jobs_reason(cluster: Cluster, job: Job, top: Top) -> Top:
    """A JobSet tells that a rule has ended it; what the rule found stands in its Job."""
    try:
        body = cluster.get(JOB, child_job(job.name))
    except UnavailableError:
        return top
    child = read_top("job", body) if body is not None else top
    return replace(top, reason=child.reason) if child.stage == "failed" else top


def label_of_job(cluster: Cluster, job: Job) -> str | None:
    """By the object itself, where the run's record is not at hand."""
    body = cluster.get(job.top, job.name)
    return None if body is None else read_top(job.kind, body).labels.get(RUN_LABEL)


def list_pods(cluster: Cluster, run_label: str | None) -> list[Pod]:
    """Every pod of the run; none where its label is not known."""
    if run_label is None:
        return []
    return [read_pod(body) for body in cluster.find(POD, f"{RUN_LABEL}={run_label}").items]


def _notes(cluster: Cluster, job: Job, top: Top, pods: list[Pod]) -> list[str]:
    newest = newest_of_nodes(pods)
    complete = bool(newest) and len(newest) >= (top.size or 1)
    if complete and not any(_says_little(pod) for pod in newest.values()):
        return []
    notes = list(_admission(cluster, job, top)) if not newest else []
    return [*notes, *_warnings(cluster, job, top, newest.values())]


def _says_little(pod: Pod) -> bool:
    """A mount that fails for ever shows in the pod's events alone."""
    return pod.container.waiting in ("ContainerCreating", "PodInitializing") or (
        pod.phase == "Pending" and bool(pod.host) and not pod.container.waiting
    )


def _admission(cluster: Cluster, job: Job, top: Top) -> Iterable[str]:
    """Kueue's Workload of this job: the conditions that are not fulfilled; or Volcano's PodGroup."""
    if job.kind == "volcano":
        return _of_group(cluster, top)
    kinds: tuple[Kind, ...] = WORKLOADS if top.queue else ()
    for kind in kinds:
        try:
            found = cluster.find(kind).items
        except MissingApi:
            continue
        except UnavailableError:
            return []
        return [
            words
            for body in found
            if _owned_by(body, top.uid)
            for words in _condition_words(kind.needs, body)
        ]
    if top.queue and top.stage == "suspended":
        return ["Kueue is not installed here, and nobody else will start a suspended job of a queue"]
    return []


def _of_group(cluster: Cluster, top: Top) -> Iterable[str]:
    """Volcano makes no pod before its PodGroup is in the queue; why it is not is told by events alone."""
    try:
        groups = [body for body in cluster.find(POD_GROUP).items if _owned_by(body, top.uid)]
    except UnavailableError:
        return []
    if not groups:
        return [] if top.restarts else [f"Volcano has not begun with it; is there a queue {top.queue}?"]
    group, name = groups[0], str(groups[0]["metadata"]["name"])
    if words := list(_condition_words(POD_GROUP.needs, group)):
        return words
    phase = str((group.get("status") or {}).get("phase") or "Pending")
    told = _told_of(cluster, name, top.created or _LONG_AGO)
    return [f"Volcano: its PodGroup is {phase} in the queue {top.queue}{f': {told}' if told else ''}"]


def _told_of(cluster: Cluster, name: str, since: datetime) -> str:
    """The newest event of an object; of any type, since Volcano tells its refusals as Normal."""
    try:
        events = cluster.find(EVENT, fields=f"involvedObject.name={name}").items
    except UnavailableError:
        return ""
    newest = max((body for body in events if _event_time(body) >= since), key=_event_time, default=None)
    return "" if newest is None else str(newest.get("message") or newest.get("reason") or "")


def _owned_by(body: Mapping[str, Any], uid: str) -> bool:
    owners = (body.get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _condition_words(who: str, body: Mapping[str, Any]) -> Iterable[str]:
    for entry in (body.get("status") or {}).get("conditions") or ():
        name, fulfilled = entry.get("type"), entry.get("status") == "True"
        bad = fulfilled if name in ("Evicted", "Unschedulable", "Preempted") else not fulfilled
        if bad and name in ("QuotaReserved", "Admitted", "Evicted", "Unschedulable", "Preempted"):
            reason = f" ({entry['reason']})" if entry.get("reason") else ""
            yield f"{who}: {entry.get('message') or name}{reason}"


def _warnings(cluster: Cluster, job: Job, top: Top, pods: Iterable[Pod]) -> list[str]:
    """Warning events of the job, its child jobs and its pods, since it was made; the newest first."""
    names = {pod.name for pod in pods}
    try:
        events = cluster.find(EVENT, fields="type=Warning").items
    except Forbidden as error:
        return [f"why cannot be told: {error.what}"]
    found: dict[str, datetime] = {}
    for body in events:
        about = body.get("involvedObject") or {}
        name = str(about.get("name") or "")
        ours = name == job.name or name in names
        child = about.get("kind") == "Job" and name.startswith(f"{job.name}-")
        at = _event_time(body)
        if body.get("type") == "Warning" and (ours or child) and at >= (top.created or _LONG_AGO):
            text = f"{body.get('reason')}: {body.get('message')}"
            found[text] = max(at, found.get(text, _LONG_AGO))
    return sorted(found, key=lambda text: found[text], reverse=True)


def _event_time(body: Mapping[str, Any]) -> datetime:
    series = body.get("series") or {}
    times = (series.get("lastObservedTime"), body.get("lastTimestamp"), body.get("eventTime"))
    made = (body.get("metadata") or {}).get("creationTimestamp")
    return max((at for text in (*times, made) if (at := read_time(text)) is not None), default=_LONG_AGO)
