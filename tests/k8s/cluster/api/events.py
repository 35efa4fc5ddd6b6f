"""Record Events as controllers do: repeated ones are counted.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
"""

from __future__ import annotations

from cluster.api.store import Store
from cluster.objects import EVENTS, Manifest, generated_name, now


def record_event(store: Store, about: Manifest, kind: str, reason: str, message: str, by: str) -> None:
    """Create an Event, or increase the count of an equal one.

    Args:
        kind: Normal or Warning.
        by: the component: job-controller, kubelet, default-scheduler.
    """
    metadata = about["metadata"]
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": metadata["name"],
        "namespace": metadata.get("namespace", "default"),
        "uid": metadata["uid"],
    }
    same = {"involvedObject": involved, "type": kind, "reason": reason, "message": message}

    def is_same(event: Manifest) -> bool:
        return all(event.get(key) == value for key, value in same.items())

    def count(event: Manifest) -> None:
        event["count"] += 1
        event["lastTimestamp"] = now()

    with store.lock:
        for event in store.select(EVENTS, involved["namespace"], is_same):
            store.update(EVENTS, involved["namespace"], event["metadata"]["name"], count)
            return
        stamps = {"firstTimestamp": now(), "lastTimestamp": now(), "count": 1}
        where = {
            "name": generated_name(f"{metadata['name']}."),
            "namespace": involved["namespace"],
        }
        store.create(
            EVENTS,
            involved["namespace"],
            {"metadata": where, **same, **stamps, "source": {"component": by}, "reportingComponent": by},
        )
