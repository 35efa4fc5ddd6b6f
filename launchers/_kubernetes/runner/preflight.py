"""Checks against the cluster before anything is created: the queue (--queue) and the run volume.

A job of a queue that does not exist would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from dist_train.errors import ConfigError, UnavailableError
from launchers._kubernetes.api.api_errors import Forbidden, MissingApi
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import CLAIM, LOCAL_QUEUES, VOLCANO_QUEUE, Body, Kind
from launchers._kubernetes.runner.removal import is_deleting
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.stderr_messages import print_notice

_SHARED_MODES = ("ReadWriteMany",)


def require_queue(cluster: Cluster, job: Job, queue: str) -> None:
    """Raise ConfigError (78) where there is no such queue, UnavailableError (69) where there is no Kueue."""
    for kind in LOCAL_QUEUES:
        try:
            found = cluster.get(kind, queue)
        except MissingApi:
            continue
        except Forbidden:
            return  # not known; Kueue reports it within seconds, and `status` shows that
        if found is None:
            raise _no_queue(cluster, kind, job, queue)
        if why := _inactive(found):
            print_notice(f"the queue {queue} admits nothing now: {why}")
        return
    raise UnavailableError(
        f"Kueue is not installed on {cluster.server}, so --queue {queue} would have no effect",
        cause="--queue names a LocalQueue of Kueue (https://kueue.sigs.k8s.io)",
        hint="drop --queue; or ask the cluster's administrators",
    )


def require_volcano_queue(cluster: Cluster, job: Job, queue: str) -> None:
    """Raise ConfigError (78) where there is none; without the right to look, Volcano's webhook refuses it."""
    try:
        if cluster.get(VOLCANO_QUEUE, queue) is not None:
            return
    except UnavailableError:
        return
    raise ConfigError(
        f"there is no Volcano queue {queue} on {cluster.server}",
        cause="a Volcano job waits in a queue; the one called default is there from the beginning",
        hint=f"give another one with --queue; `{job.kubectl(f'get {VOLCANO_QUEUE.full_name}')}` lists them",
    )


def require_claim(cluster: Cluster, job: Job, claim: str, nodes: int) -> None:
    """Raise ConfigError (78) where the run volume does not exist, or its nodes cannot all mount it."""
    try:
        found = cluster.get(CLAIM, claim)
    except Forbidden as error:
        print_notice(f"whether the run volume can be shared is not known: {error.what}")
        return
    if found is None:
        raise ConfigError(
            f"there is no PersistentVolumeClaim {claim} in namespace {cluster.namespace} of {cluster.server}",
            hint=f"`{job.kubectl('get pvc')}` lists them; k8s/pvc.yaml makes one",
        )
    phase = str((found.get("status") or {}).get("phase") or "")
    if phase == "Lost" or is_deleting(found):
        raise ConfigError(
            f"the run volume pvc/{claim} is {'being deleted' if is_deleting(found) else 'lost'}",
            hint=job.kubectl(f"describe pvc {claim}"),
        )
    modes = (found.get("status") or {}).get("accessModes") or found["spec"].get("accessModes") or []
    if nodes > 1 and not any(mode in _SHARED_MODES for mode in modes):
        raise ConfigError(
            f"the run volume pvc/{claim} can be mounted by one machine alone ({', '.join(modes)}), "
            f"and the job has {nodes} nodes",
            cause="disks such as EBS, Persistent Disk and Azure Disk cannot be shared for writing",
            hint="a claim with accessModes [ReadWriteMany]: NFS, CephFS, EFS, Filestore, Azure Files, FSS; "
            "k8s/pvc.yaml makes one",
        )


def _no_queue(cluster: Cluster, kind: Kind, job: Job, queue: str) -> ConfigError:
    try:
        others = sorted(str(body["metadata"]["name"]) for body in cluster.find(kind).items)
    except UnavailableError:
        others = []
    return ConfigError(
        f"there is no LocalQueue {queue} in namespace {job.namespace} of {cluster.server}",
        cause=f"its LocalQueues: {', '.join(others) or 'none'}",
        hint=f"give one of them with --queue; `{job.kubectl(f'get {kind.full_name}')}` lists them",
    )


def _inactive(queue: Body) -> str:
    conditions: Iterable[Body] = (queue.get("status") or {}).get("conditions") or ()
    for entry in conditions:
        if entry.get("type") == "Active" and entry.get("status") == "False":
            return str(entry.get("message") or entry.get("reason") or "it is not active")
    return ""
