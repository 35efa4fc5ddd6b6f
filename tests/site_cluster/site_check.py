"""What a cluster lacks for the tests: found out before anything is created."""

from __future__ import annotations

from site_cluster.site import Missing, Site

from dist_train.errors import DistTrainError
from launchers._kubernetes.api.api_errors import Forbidden
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import CLAIM, CONFIG_MAP, JOB, POD, SERVICE

_RIGHTS = "k8s/rbac.yaml has the rights of dist-train; the tests also delete pods: verbs [delete] on pods"


def check(cluster: Cluster, site: Site) -> None:
    """Raise Missing for a namespace, claim or right that is not there."""
    try:
        cluster.require_namespace()
        for kind in (JOB, SERVICE, CONFIG_MAP, POD):
            cluster.find(kind, "app.kubernetes.io/managed-by=nobody")
            # Rights are looked at before the name is: of an object that does not exist, nothing is deleted.
            cluster.delete(kind, f"{site.session}-none")
        found = cluster.get(CLAIM, site.claim)
    except Forbidden as error:
        raise Missing(f"a right is missing: {error}\n{_RIGHTS}") from error
    except DistTrainError as error:
        raise Missing(str(error)) from error
    if found is None:
        raise Missing(
            f"there is no PersistentVolumeClaim {site.claim} in namespace {site.namespace}: "
            "CLAIM=NAME of one with ReadWriteMany (k8s/pvc.yaml makes one)"
        )
