"""Garbage collection: dependents of deleted owners, Jobs after their TTL, pods of deleted nodes.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions (DeletionByPodGC)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cluster.api.store import FOREGROUND, ORPHAN, Deletion, Store
from cluster.objects import (
    JOBS,
    NODES,
    PODS,
    Manifest,
    Resource,
    finalizers,
    find_condition,
    is_deleting,
    is_true,
    owners,
    seconds,
    set_condition,
)


@dataclass
class GarbageCollector:
    """Delete dependents: background, foreground and orphan policies."""

    store: Store

    def sync(self) -> None:
        """Check all objects once."""
        with self.store.lock:
            everything = list(self.store.everything())
            uids = {obj["metadata"]["uid"] for _, obj in everything}
            for resource, obj in everything:
                if is_deleting(obj) and {FOREGROUND, ORPHAN} & set(finalizers(obj)):
                    self._release_owner(resource, obj, everything)
                elif owners(obj) and not is_deleting(obj) and not self._has_owner(obj, uids):
                    self._delete(resource, obj, "Background")

    def _has_owner(self, obj: Manifest, uids: set[str]) -> bool:
        return any(ref["uid"] in uids for ref in owners(obj))

    def _release_owner(
        self, resource: Resource, owner: Manifest, everything: list[tuple[Resource, Manifest]]
    ) -> None:
        """Release a deleted owner: Foreground after its dependents, Orphan after clearing references."""
        uid, blocked = owner["metadata"]["uid"], False
        for kind, obj in everything:
            ref = next((ref for ref in owners(obj) if ref["uid"] == uid), None)
            if ref is None:
                continue
            if ORPHAN in finalizers(owner):
                self._change(kind, obj, partial(_remove_owner, uid))
                continue
            blocked = blocked or bool(ref.get("blockOwnerDeletion"))
            if not is_deleting(obj):
                self._delete(kind, obj, "Foreground")
        if not blocked:
            self._change(resource, owner, _remove_policy_finalizers)

    def _delete(self, resource: Resource, obj: Manifest, policy: str) -> None:
        metadata = obj["metadata"]
        how = Deletion(policy=policy, uid=metadata["uid"])
        if self.store.find(resource, metadata.get("namespace", ""), metadata["name"]):
            self.store.delete(resource, metadata.get("namespace", ""), metadata["name"], how)

    def _change(self, resource: Resource, obj: Manifest, change: Callable[[Manifest], None]) -> None:
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        if self.store.find(resource, namespace, name):
            self.store.update(resource, namespace, name, change)


def _remove_owner(uid: str, obj: Manifest) -> None:
    obj["metadata"]["ownerReferences"] = [ref for ref in owners(obj) if ref["uid"] != uid]


def _remove_policy_finalizers(obj: Manifest) -> None:
    obj["metadata"]["finalizers"] = [name for name in finalizers(obj) if name not in (FOREGROUND, ORPHAN)]


@dataclass
class TtlController:
    """Delete finished Jobs after spec.ttlSecondsAfterFinished.

    Attributes:
        scale: factor of every TTL; 0.01 makes 100 s one.
    """

    store: Store
    scale: float = 1.0

    def sync(self) -> float | None:
        """Delete expired Jobs; returns the seconds until the next one."""
        due = []
        with self.store.lock:
            for job in self.store.select(JOBS):
                if (left := self._left(job)) is None:
                    continue
                if left > 0:
                    due.append(left)
                    continue
                metadata = job["metadata"]
                self.store.delete(
                    JOBS, metadata["namespace"], metadata["name"], Deletion(policy="Foreground")
                )
        return min(due, default=None)

    def _left(self, job: Manifest) -> float | None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        ended = next((kind for kind in ("Complete", "Failed") if is_true(job, kind)), None)
        if ttl is None or ended is None or is_deleting(job):
            return None
        stamp = (find_condition(job, ended) or {})["lastTransitionTime"]
        return seconds(stamp) + float(ttl) * self.scale - time.time()


@dataclass
class PodCollector:
    """Pod GC: fail and force-delete the pods of nodes that no longer exist."""

    store: Store

    def sync(self) -> None:
        """Check all pods once."""
        with self.store.lock:
            nodes = {node["metadata"]["name"] for node in self.store.select(NODES)}
            for pod in self.store.select(PODS):
                node = pod["spec"].get("nodeName")
                if node is None or node in nodes:
                    continue
                metadata = pod["metadata"]
                if pod["status"]["phase"] not in ("Succeeded", "Failed"):
                    self.store.update(PODS, metadata["namespace"], metadata["name"], _fail_orphan)
                self.store.delete(PODS, metadata["namespace"], metadata["name"], Deletion(grace_s=0))


def _fail_orphan(pod: Manifest) -> None:
    pod["status"]["phase"] = "Failed"
    set_condition(pod, "DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists")
