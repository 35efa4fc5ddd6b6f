"""Create a plan's objects on the cluster: everything that can be checked is checked before the first."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from launchers._kubernetes.api.api_errors import AlreadyExists
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import Body, Kind, kind_of
from launchers._kubernetes.runner.preflight import require_claim, require_queue, require_volcano_queue
from launchers._kubernetes.runner.removal import label_of, remove, undo_creation
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_object import read_job_object
from launchers._kubernetes.state.job_snapshot import list_pods
from launchers._kubernetes.state.pod_reasons import pod_reason
from launchers._kubernetes.state.pods import Pod
from launchers._kubernetes.stderr_messages import print_notice

# Time beyond the pods' grace, for the kubelet, the controller and the garbage collector.
REMOVAL_S = 60.0
_POLL_S = 1.0
_NOTICE_S = 15.0
# Trainer's webhook reads a cache, which may lack a runtime that was created a moment ago.
_NOT_CACHED = "must be created before the TrainJob"
_NOT_CACHED_S, _NOT_CACHED_POLL_S = 10.0, 0.25


@dataclass(frozen=True)
class Submission:
    """What the manifests do not hold of a submission."""

    job: Job
    run_label: str
    nodes: int
    claim: str | None
    grace_s: float
    # Of Kueue; other queues are not checked.
    queue: str | None = None


def create(cluster: Cluster, manifests: list[Body], submission: Submission) -> Job:
    """Create every object in order, the job object last, and set it as the owner of the others.

    Raises ConfigError (78) for a namespace, volume, queue or name that cannot be used, UnavailableError (69)
    for what the cluster refuses; in both cases nothing is left behind.
    """
    cluster.require_namespace()
    if submission.claim is not None:
        require_claim(cluster, submission.job, submission.claim, submission.nodes)
    if submission.queue is not None:
        require_queue(cluster, submission.job, submission.queue)
    if submission.job.kind == "volcano":
        require_volcano_queue(cluster, submission.job, str(manifests[-1]["spec"]["queue"]))
    _remove_previous(cluster, manifests, submission)
    made: list[tuple[Kind, Body]] = []
    try:
        for manifest in manifests:
            made.append((kind_of(manifest), _create(cluster, manifest, submission)))
    except BaseException:
        undo_creation(cluster, made)
        raise
    finally:
        for text in cluster.warnings:
            print_notice(f"the API server warns: {text}")
        cluster.warnings.clear()
    _set_owner(cluster, made, submission)
    return submission.job


def _create(cluster: Cluster, manifest: Body, submission: Submission) -> Body:
    deadline = time.monotonic() + _NOT_CACHED_S
    while True:
        try:
            return cluster.create(manifest)
        except AlreadyExists as error:
            kind = kind_of(manifest)
            found = cluster.get(kind, str(manifest["metadata"]["name"]))
            if found is None:
                raise
            raise _already_exists(cluster, kind, found, submission) from error
        except UnavailableError as error:
            if _NOT_CACHED not in error.what or time.monotonic() > deadline:
                raise
            time.sleep(_NOT_CACHED_POLL_S)


def _remove_previous(cluster: Cluster, manifests: list[Body], submission: Submission) -> None:
    """Remove a finished job of the same run; raise for one of another run, and for one that still runs."""
    exists = bool(list_pods(cluster, submission.run_label))
    for manifest in manifests:
        kind = kind_of(manifest)
        found = cluster.get(kind, str(manifest["metadata"]["name"]))
        if found is None:
            continue
        exists = True
        if label_of(found) != submission.run_label:
            raise _already_exists(cluster, kind, found, submission)
        if manifest is manifests[-1]:
            _refuse_active(found, submission)
    if exists:
        remove(cluster, submission.job, submission.run_label)
        _wait_until_gone(cluster, manifests, submission)


def _refuse_active(found: Body, submission: Submission) -> None:
    state = read_job_object(submission.job.kind, found)
    if not state.finished and not state.deleting:
        raise ConfigError(
            f"the run's {found['kind']} {state.name} is already running "
            f"in namespace {submission.job.namespace}",
            cause="a second start at the same time would damage the run",
            hint=submission.job.kubectl(f"delete {submission.job.api_kind.full_name} {state.name}"),
        )


def _already_exists(cluster: Cluster, kind: Kind, found: Body, submission: Submission) -> AlreadyExists:
    head = found["metadata"]
    owner = label_of(found)
    who = f"the run {owner}" if owner else "somebody else (it has no label of dist-train)"
    remove = submission.job.kubectl(f"delete {kind.full_name} {head['name']}")
    return AlreadyExists(
        f"{kind.kind} {head['name']} exists already in namespace {cluster.namespace}: "
        f"it belongs to {who}, since {head.get('creationTimestamp') or 'an unknown time'}",
        cause="two runs of one name would take each other's pods and volume folder",
        hint=f"give this run another --name; or remove the other one: {remove}",
    )


def _wait_until_gone(cluster: Cluster, manifests: list[Body], submission: Submission) -> None:
    """Wait until objects and pods of the run are gone: two pods of node 0 would write the same run."""
    deadline = time.monotonic() + submission.grace_s + REMOVAL_S
    notice_at = time.monotonic() + _POLL_S
    while True:
        left = [
            f"{kind.kind} {name}"
            for kind, name in ((kind_of(body), str(body["metadata"]["name"])) for body in manifests)
            if cluster.get(kind, name) is not None
        ]
        pods = list_pods(cluster, submission.run_label)
        if not left and not pods:
            return
        names = ", ".join([*left, *(f"pod {pod.name}" for pod in pods)])
        if time.monotonic() > deadline:
            raise _not_gone(cluster, names, pods, submission)
        if time.monotonic() > notice_at:
            print_notice(f"waiting until the run's previous start is gone: {names}")
            notice_at = time.monotonic() + _NOTICE_S
        time.sleep(_POLL_S)


def _not_gone(cluster: Cluster, names: str, pods: list[Pod], submission: Submission) -> UnavailableError:
    reasons = [pod_reason(pod, cluster.now()) for pod in pods]
    stuck = [reason for reason in reasons if reason.stuck and reason.command]
    return UnavailableError(
        f"the run's previous start is not gone after {submission.grace_s + REMOVAL_S:.0f} s: {names}",
        cause="; ".join(reason.text for reason in stuck) or None,
        hint=submission.job.kubectl(
            stuck[0].command if stuck else f"describe {submission.job.api_kind.full_name}"
        ),
    )


def _set_owner(cluster: Cluster, made: list[tuple[Kind, Body]], submission: Submission) -> None:
    """Make the job object the owner, so that the others are deleted with it.

    (Without blockOwnerDeletion, which needs more rights.)
    """
    *others, (kind, job_object) = made
    owner = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": job_object["metadata"]["name"],
        "uid": job_object["metadata"].get("uid") or "",
    }
    failed = []
    for other, body in others:
        name = str(body["metadata"]["name"])
        try:
            cluster.patch(other, name, {"metadata": {"ownerReferences": [owner]}})
        except DistTrainError as error:
            failed.append(f"{other.kind} {name} has no owner ({error.what})")
    if failed:
        kinds = ",".join(dict.fromkeys(other.plural for other, _ in others))
        remove = submission.job.kubectl(f"delete {kinds} -l dist-train/run-id={submission.run_label}")
        print_notice(
            f"{'; '.join(failed)}: `dist-train cancel` removes it, and after the run's end: {remove}"
        )
