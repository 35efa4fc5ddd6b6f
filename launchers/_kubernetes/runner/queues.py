"""--queue, before anything is made: a job of a queue that does not exist would wait for ever."""

from __future__ import annotations

from collections.abc import Iterable

from dist_train.errors import ConfigError, UnavailableError
from launchers._kubernetes.api.cluster import Body, Cluster
from launchers._kubernetes.api.kinds import LOCAL_QUEUES, VOLCANO_QUEUE, Kind
from launchers._kubernetes.api.refusals import Forbidden, MissingApi
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.terminal import say


def require_queue(cluster: Cluster, job: Job, queue: str) -> None:
    """Raises ConfigError (78) where there is no such queue, UnavailableError (69) where there is no Kueue."""
    for kind in LOCAL_QUEUES:
        try:
            found = cluster.get(kind, queue)
        except MissingApi:
            continue
        except Forbidden:
            return  # not known; Kueue itself says it within seconds, and `status` repeats that
        if found is None:
            raise _no_queue(cluster, kind, job, queue)
        if why := _inactive(found):
            say(f"the queue {queue} admits nothing now: {why}")
        return
    raise UnavailableError(
        f"Kueue is not installed on {cluster.server}, so --queue {queue} would have no effect",
        cause="--queue names a LocalQueue of Kueue (https://kueue.sigs.k8s.io)",
        mend="drop --queue; or ask the cluster's administrators",
    )


def require_volcano_queue(cluster: Cluster, job: Job, queue: str) -> None:
    """Raises ConfigError (78) where there is none; who may not look hears it of Volcano's webhook."""
    try:
        if cluster.get(VOLCANO_QUEUE, queue) is not None:
            return
    except UnavailableError:
        return
    raise ConfigError(
        f"there is no Volcano queue {queue} on {cluster.server}",
        cause="a Volcano job waits in a queue; the one called default is there from the beginning",
        mend=f"give another one with --queue; `{job.kubectl(f'get {VOLCANO_QUEUE.full_name}')}` lists them",
    )


def _no_queue(cluster: Cluster, kind: Kind, job: Job, queue: str) -> ConfigError:
    try:
        others = sorted(str(body["metadata"]["name"]) for body in cluster.find(kind).items)
    except UnavailableError:
        others = []
    return ConfigError(
        f"there is no LocalQueue {queue} in namespace {job.namespace} of {cluster.server}",
        cause=f"its LocalQueues: {', '.join(others) or 'none'}",
        mend=f"give one of them with --queue; `{job.kubectl(f'get {kind.full_name}')}` lists them",
    )


def _inactive(queue: Body) -> str:
    conditions: Iterable[Body] = (queue.get("status") or {}).get("conditions") or ()
    for entry in conditions:
        if entry.get("type") == "Active" and entry.get("status") == "False":
            return str(entry.get("message") or entry.get("reason") or "it is not active")
    return ""
