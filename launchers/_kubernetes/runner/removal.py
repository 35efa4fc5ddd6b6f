"""Remove a job: everything with the run's label; the pods save and stop within their grace."""

from __future__ import annotations

from dist_train.errors import UnavailableError
from launchers._kubernetes.api.api_errors import Forbidden, MissingApi
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import POD, Body, Kind, support_kinds
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.stderr_messages import print_notice


def remove(cluster: Cluster, job: Job, run_label: str | None) -> None:
    """Request the deletion of the job and of every object of the run; idempotent.

    Raises UnavailableError where the job object may not be deleted.
    """
    body = cluster.get(job.api_kind, job.name)
    of_this_run = body is not None and run_label in (None, label_of(body))
    if body is not None and of_this_run:
        run_label = label_of(body)
        if not is_deleting(body):
            # Foreground: the object exists until its pods are gone, so that `status` shows them.
            cluster.delete(
                job.api_kind, job.name, "Foreground", str(body["metadata"].get("uid") or "") or None
            )
    if run_label is not None:
        remove_support_objects(cluster, job, run_label)


def remove_support_objects(cluster: Cluster, job: Job, run_label: str) -> None:
    """Delete objects without an owner, which the garbage collector does not remove."""
    for kind in (*support_kinds(job.kind), POD):
        for body in _listed(cluster, kind, f"{RUN_LABEL}={run_label}"):
            if not is_deleting(body) and not (body["metadata"].get("ownerReferences") or ()):
                try:
                    cluster.delete(kind, str(body["metadata"]["name"]))
                except Forbidden as error:
                    print_notice(f"{kind.kind} {body['metadata']['name']} is left: {error.what}")


def _listed(cluster: Cluster, kind: Kind, selector: str) -> tuple[Body, ...]:
    try:
        return cluster.find(kind, selector).items
    except MissingApi:
        return ()
    except Forbidden as error:
        print_notice(f"{kind.plural} of the run may be left: {error.what}")
        return ()


def label_of(body: Body) -> str | None:
    """The run label of an object."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(RUN_LABEL)


def is_deleting(body: Body) -> bool:
    """Whether its deletion was requested."""
    return body["metadata"].get("deletionTimestamp") is not None


def undo_creation(cluster: Cluster, made: list[tuple[Kind, Body]]) -> None:
    """Delete what was created before a submission failed, the last first."""
    for kind, body in reversed(made):
        head = body["metadata"]
        try:
            cluster.delete(kind, str(head["name"]), uid=str(head.get("uid") or "") or None)
        except UnavailableError as error:
            print_notice(f"{kind.kind} {head['name']} was made and could not be removed: {error.what}")
