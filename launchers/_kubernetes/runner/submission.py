"""From a plan to objects on the cluster: what can be found wrong is found before the first is made."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from launchers._kubernetes.api.cluster import Body, Cluster
from launchers._kubernetes.api.kinds import CLAIM, Kind, kind_of
from launchers._kubernetes.api.refusals import Forbidden, Question, Taken
from launchers._kubernetes.runner.queues import require_queue, require_volcano_queue
from launchers._kubernetes.runner.removal import is_deleting, label_of, remove, take_back
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import Pod
from launchers._kubernetes.state.reasons import pod_words
from launchers._kubernetes.state.sight import list_pods
from launchers._kubernetes.state.top import read_top
from launchers._kubernetes.terminal import say

# Beyond the pods' grace: the kubelet, the controller and the garbage collector.
REMOVAL_S = 60.0
_POLL_S = 1.0
_SAY_S = 15.0
# Trainer's webhook looks into a cache, in which a runtime that was made a moment ago may not be yet.
_UNSEEN = "must be created before the TrainJob"
_UNSEEN_S, _UNSEEN_AGAIN_S = 10.0, 0.25
_SHARED = ("ReadWriteMany",)


@dataclass(frozen=True)
class Terms:
    """What the manifests alone do not tell of a submission."""

    job: Job
    run_label: str
    nodes: int
    claim: str | None
    grace_s: float
    # Of Kueue; the other queues are not looked at.
    queue: str | None = None


def create(cluster: Cluster, manifests: list[Body], terms: Terms) -> Job:
    """Make every object in order, the job itself last, and give the others their owner.

    Raises ConfigError (78) for a namespace, volume, queue or name that will not do, UnavailableError (69) for
    what the cluster refuses; then nothing is left behind.
    """
    cluster.require_namespace()
    _require_claim(cluster, terms)
    if terms.queue is not None:
        require_queue(cluster, terms.job, terms.queue)
    if terms.job.kind == "volcano":
        require_volcano_queue(cluster, terms.job, str(manifests[-1]["spec"]["queue"]))
    _clear_the_way(cluster, manifests, terms)
    made: list[tuple[Kind, Body]] = []
    try:
        for manifest in manifests:
            made.append((kind_of(manifest), _create(cluster, manifest, terms)))
    except BaseException:
        take_back(cluster, made)
        raise
    finally:
        for text in cluster.warnings:
            say(f"the API server warns: {text}")
        cluster.warnings.clear()
    _own(cluster, made, terms)
    return terms.job


def _create(cluster: Cluster, manifest: Body, terms: Terms) -> Body:
    deadline = time.monotonic() + _UNSEEN_S
    while True:
        try:
            return cluster.create(manifest)
        except Taken as error:
            kind = kind_of(manifest)
            found = cluster.get(kind, str(manifest["metadata"]["name"]))
            if found is None:
                raise
            raise _taken(cluster, kind, found, terms) from error
        except UnavailableError as error:
            if _UNSEEN not in error.what or time.monotonic() > deadline:
                raise
            time.sleep(_UNSEEN_AGAIN_S)


def _require_claim(cluster: Cluster, terms: Terms) -> None:
    """The run volume is there, and all nodes may mount it."""
    if terms.claim is None:
        return
    question = Question("get", CLAIM, cluster.namespace, terms.claim, cluster.server, cluster.context)
    try:
        found = cluster.get(CLAIM, terms.claim)
    except Forbidden as error:
        say(f"whether the run volume can be shared is not known: {error.what}")
        return
    if found is None:
        raise ConfigError(
            f"there is no PersistentVolumeClaim {terms.claim} in {question.where}",
            mend=f"`{terms.job.kubectl('get pvc')}` lists them; k8s/pvc.yaml makes one",
        )
    phase = str((found.get("status") or {}).get("phase") or "")
    if phase == "Lost" or is_deleting(found):
        raise ConfigError(
            f"the run volume pvc/{terms.claim} is {'being deleted' if is_deleting(found) else 'lost'}",
            mend=terms.job.kubectl(f"describe pvc {terms.claim}"),
        )
    modes = (found.get("status") or {}).get("accessModes") or found["spec"].get("accessModes") or []
    if terms.nodes > 1 and not any(mode in _SHARED for mode in modes):
        raise ConfigError(
            f"the run volume pvc/{terms.claim} can be mounted by one machine alone ({', '.join(modes)}), "
            f"and the job has {terms.nodes} nodes",
            cause="disks such as EBS, Persistent Disk and Azure Disk cannot be shared for writing",
            mend="a claim with accessModes [ReadWriteMany]: NFS, CephFS, EFS, Filestore, Azure Files, FSS; "
            "k8s/pvc.yaml makes one",
        )


def _clear_the_way(cluster: Cluster, manifests: list[Body], terms: Terms) -> None:
    """A finished job of this very run is removed first; anybody else's, and one at work, stays."""
    ours = bool(list_pods(cluster, terms.run_label))
    for manifest in manifests:
        kind = kind_of(manifest)
        found = cluster.get(kind, str(manifest["metadata"]["name"]))
        if found is None:
            continue
        ours = True
        if label_of(found) != terms.run_label:
            raise _taken(cluster, kind, found, terms)
        if manifest is manifests[-1]:
            _refuse_at_work(found, terms)
    if ours:
        remove(cluster, terms.job, terms.run_label)
        _wait_until_gone(cluster, manifests, terms)


def _refuse_at_work(found: Body, terms: Terms) -> None:
    state = read_top(terms.job.kind, found)
    if not state.finished and not state.deleting:
        raise ConfigError(
            f"the run's {found['kind']} {state.name} is at work already in namespace {terms.job.namespace}",
            cause="a second start beside the first would damage the run",
            mend=terms.job.kubectl(f"delete {terms.job.top.full_name} {state.name}"),
        )


def _taken(cluster: Cluster, kind: Kind, found: Body, terms: Terms) -> Taken:
    head = found["metadata"]
    owner = label_of(found)
    who = f"the run {owner}" if owner else "somebody else (it has no label of dist-train)"
    remove = terms.job.kubectl(f"delete {kind.full_name} {head['name']}")
    return Taken(
        f"{kind.kind} {head['name']} is there already in namespace {cluster.namespace}: "
        f"it belongs to {who}, since {head.get('creationTimestamp') or 'an unknown time'}",
        cause="two runs of one name would take each other's pods and volume folder",
        mend=f"give this run another --name; or remove the other one: {remove}",
    )


def _wait_until_gone(cluster: Cluster, manifests: list[Body], terms: Terms) -> None:
    """Until neither the objects nor pods of the run are there: two pods of node 0 would write one run."""
    deadline = time.monotonic() + terms.grace_s + REMOVAL_S
    say_at = time.monotonic() + _POLL_S
    while True:
        left = [
            f"{kind.kind} {name}"
            for kind, name in ((kind_of(body), str(body["metadata"]["name"])) for body in manifests)
            if cluster.get(kind, name) is not None
        ]
        pods = list_pods(cluster, terms.run_label)
        if not left and not pods:
            return
        told = ", ".join([*left, *(f"pod {pod.name}" for pod in pods)])
        if time.monotonic() > deadline:
            raise _not_gone(cluster, told, pods, terms)
        if time.monotonic() > say_at:
            say(f"waiting until the run's last start is gone: {told}")
            say_at = time.monotonic() + _SAY_S
        time.sleep(_POLL_S)


def _not_gone(cluster: Cluster, told: str, pods: list[Pod], terms: Terms) -> UnavailableError:
    words = [pod_words(pod, cluster.now()) for pod in pods]
    stuck = [found for found in words if found.stuck and found.command]
    return UnavailableError(
        f"the run's last start is not gone after {terms.grace_s + REMOVAL_S:.0f} s: {told}",
        cause="; ".join(found.text for found in stuck) or None,
        mend=terms.job.kubectl(stuck[0].command if stuck else f"describe {terms.job.top.full_name}"),
    )


def _own(cluster: Cluster, made: list[tuple[Kind, Body]], terms: Terms) -> None:
    """With an owner they go when the job goes, whoever removes it; blockOwnerDeletion needs more rights."""
    *others, (kind, top) = made
    owner = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": top["metadata"]["name"],
        "uid": top["metadata"].get("uid") or "",
    }
    left = []
    for other, body in others:
        name = str(body["metadata"]["name"])
        try:
            cluster.patch(other, name, {"metadata": {"ownerReferences": [owner]}})
        except DistTrainError as error:
            left.append(f"{other.kind} {name} has no owner ({error.what})")
    if left:
        kinds = ",".join(dict.fromkeys(other.plural for other, _ in others))
        remove = terms.job.kubectl(f"delete {kinds} -l dist-train/run-id={terms.run_label}")
        say(f"{'; '.join(left)}: `dist-train cancel` removes it, and after the run's end: {remove}")
