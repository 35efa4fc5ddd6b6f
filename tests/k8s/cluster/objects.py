"""Kinds of objects, objects as dictionaries, and the fields that all of them share."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Manifest = dict[str, Any]

# Alphabet of the API server's generateName: no vowels, no look-alikes.
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED = 63 - 5
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Resource:
    """A kind and its path in the API.

    Attributes:
        has_status: whether it has a /status subresource, so that the main one ignores status.
        custom: defined by a CustomResourceDefinition; no strategic merge patch.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = True
    custom: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def name(self) -> str:
        """Name in the server's messages: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", has_status=False)
SECRETS = Resource("", "v1", "secrets", "Secret", has_status=False)
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("", "v1", "events", "Event", has_status=False)
JOBS = Resource("batch", "v1", "jobs", "Job")
BUILT_IN = (
    *(NAMESPACES, NODES, PODS, SERVICES, CONFIG_MAPS, SECRETS, CLAIMS, EVENTS, JOBS),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", has_status=False),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", has_status=False),
)


def _custom(group: str, version: str, plural: str, kind: str, namespaced: bool = True) -> Resource:
    return Resource(group, version, plural, kind, namespaced, custom=True)


# Kinds of installable operators, by the name that `cluster.install` takes.
OPERATORS: Mapping[str, tuple[Resource, ...]] = {
    "jobset": (_custom("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"),),
    "kueue": (
        _custom("kueue.x-k8s.io", "v1beta2", "workloads", "Workload"),
        _custom("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue"),
    ),
    "volcano": (
        _custom("batch.volcano.sh", "v1alpha1", "jobs", "Job"),
        _custom("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
        _custom("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False),
    ),
    "trainer": (
        _custom("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"),
        _custom("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime"),
        _custom(
            "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", False
        ),
    ),
}


def now(after_s: float = 0) -> str:
    """Current time as a metav1.Time, in whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def earlier(value: Any, by_s: float) -> Any:
    """Copy a value with every timestamp moved back."""
    if isinstance(value, dict):
        return {key: earlier(inner, by_s) for key, inner in value.items()}
    if isinstance(value, list):
        return [earlier(inner, by_s) for inner in value]
    if isinstance(value, str) and _TIME.fullmatch(value):
        return (datetime.fromisoformat(value) - timedelta(seconds=by_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


def seconds(stamp: str) -> float:
    """Parse a timestamp to seconds since 1970."""
    return datetime.fromisoformat(stamp).timestamp()


def generated_name(prefix: str) -> str:
    """Generate a name from metadata.generateName: cut to 58 characters, then five random ones."""
    return prefix[:_MAX_GENERATED] + "".join(random.SystemRandom().choices(_SUFFIX, k=5))


def finalizers(obj: Manifest) -> list[str]:
    """metadata.finalizers."""
    return list(obj["metadata"].get("finalizers") or [])


def is_deleting(obj: Manifest) -> bool:
    """Whether it has a deletionTimestamp."""
    return "deletionTimestamp" in obj["metadata"]


def controller_of(obj: Manifest) -> Manifest | None:
    """The ownerReference with `controller: true`."""
    return next((ref for ref in owners(obj) if ref.get("controller")), None)


def owners(obj: Manifest) -> list[Manifest]:
    """metadata.ownerReferences."""
    return list(obj["metadata"].get("ownerReferences") or [])


def find_condition(obj: Manifest, kind: str) -> Manifest | None:
    """status.conditions[type=kind]."""
    found: Iterable[Manifest] = obj.get("status", {}).get("conditions") or []
    return next((condition for condition in found if condition["type"] == kind), None)


def is_true(obj: Manifest, kind: str) -> bool:
    """Whether the condition exists with status True."""
    condition = find_condition(obj, kind)
    return condition is not None and condition["status"] == "True"


def set_condition(obj: Manifest, kind: str, status: str, reason: str = "", message: str = "") -> bool:
    """Add or update a condition; returns whether anything changed."""
    new = {"type": kind, "status": status, "lastTransitionTime": now()}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    old = find_condition(obj, kind)
    if old is None:
        obj.setdefault("status", {}).setdefault("conditions", []).append(new)
        return True
    if all(old.get(key) == new.get(key) for key in ("status", "reason", "message")):
        return False
    old.clear()
    old.update(new)
    return True
