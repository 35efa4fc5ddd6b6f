"""Removing a job: everything with the run's label, so that nothing is left; pods save and stop first."""

from __future__ import annotations

from dist_train.errors import UnavailableError
from launchers._kubernetes.api.cluster import Body, Cluster
from launchers._kubernetes.api.kinds import POD, Kind, beside
from launchers._kubernetes.api.refusals import Forbidden, MissingApi
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.terminal import say


def remove(cluster: Cluster, job: Job, run_label: str | None) -> None:
    """Order the removal of the job and of all that belongs to the run; done again, it changes nothing.

    Raises UnavailableError where the job itself may not be deleted.
    """
    top = cluster.get(job.top, job.name)
    mine = top is not None and run_label in (None, label_of(top))
    if top is not None and mine:
        run_label = label_of(top)
        if not is_deleting(top):
            # Foreground: the object stays until its pods are gone, so that `status` sees them save.
            cluster.delete(job.top, job.name, "Foreground", str(top["metadata"].get("uid") or "") or None)
    if run_label is not None:
        remove_beside(cluster, job, run_label)


def remove_beside(cluster: Cluster, job: Job, run_label: str) -> None:
    """What nobody owns: where the owner could not be set, the garbage collector passes it over."""
    for kind in (*beside(job.kind), POD):
        for body in _listed(cluster, kind, f"{RUN_LABEL}={run_label}"):
            if not is_deleting(body) and not (body["metadata"].get("ownerReferences") or ()):
                try:
                    cluster.delete(kind, str(body["metadata"]["name"]))
                except Forbidden as error:
                    say(f"{kind.kind} {body['metadata']['name']} is left: {error.what}")


def _listed(cluster: Cluster, kind: Kind, selector: str) -> tuple[Body, ...]:
    try:
        return cluster.find(kind, selector).items
    except MissingApi:
        return ()
    except Forbidden as error:
        say(f"{kind.plural} of the run may be left: {error.what}")
        return ()


def label_of(body: Body) -> str | None:
    """The run that an object belongs to."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(RUN_LABEL)


def is_deleting(body: Body) -> bool:
    """Whether its removal was ordered."""
    return body["metadata"].get("deletionTimestamp") is not None


def take_back(cluster: Cluster, made: list[tuple[Kind, Body]]) -> None:
    """After a refusal in the middle: what was made before it goes, the last first."""
    for kind, body in reversed(made):
        head = body["metadata"]
        try:
            cluster.delete(kind, str(head["name"]), uid=str(head.get("uid") or "") or None)
        except UnavailableError as error:
            say(f"{kind.kind} {head['name']} was made and could not be removed: {error.what}")
