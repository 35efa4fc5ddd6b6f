"""Pods of a Job: created from its template, selected, counted."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.api.defaults import INDEX, TRACKING
from cluster.api.store import Store
from cluster.controllers.pod_failure_policy import apply_policy
from cluster.objects import PODS, Manifest, controller_of, finalizers, generated_name, is_deleting

_ENDED = ("Succeeded", "Failed")


def new_pod(job: Manifest, index: int) -> Manifest:
    """Build a pod of the Job.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode : the index is an
    annotation, a label, part of the host name `<job>-<index>`, and JOB_COMPLETION_INDEX.
    """
    metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    pod = {"metadata": template.get("metadata") or {}, "spec": template["spec"]}
    name = metadata["name"]
    if job["spec"]["completionMode"] == "Indexed":
        name = f"{name}-{index}"
        for group in ("labels", "annotations"):
            pod["metadata"].setdefault(group, {})[INDEX] = str(index)
        pod["spec"]["hostname"] = name
        field_ref = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
            names = {variable["name"] for variable in container.setdefault("env", [])}
            if "JOB_COMPLETION_INDEX" not in names:
                container["env"].append(
                    {"name": "JOB_COMPLETION_INDEX", "valueFrom": copy.deepcopy(field_ref)}
                )
    pod["metadata"] |= {
        "name": generated_name(f"{name}-"),
        "generateName": f"{name}-",
        "finalizers": [TRACKING],
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": metadata["name"],
                "uid": metadata["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    return pod


def pods_of(store: Store, job: Manifest) -> list[Manifest]:
    """All pods of the Job, by index and age."""
    uid = job["metadata"]["uid"]
    mine = store.select(
        PODS, job["metadata"]["namespace"], lambda p: (controller_of(p) or {}).get("uid") == uid
    )
    return sorted(mine, key=index_of)


def index_of(pod: Manifest) -> int:
    """Completion index of a pod; -1 without one."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def is_active(pod: Manifest) -> bool:
    """Whether it has neither ended nor a deletionTimestamp."""
    return pod["status"]["phase"] not in _ENDED and not is_deleting(pod)


def is_terminating(pod: Manifest) -> bool:
    """Whether it has a deletionTimestamp and has not ended."""
    return pod["status"]["phase"] not in _ENDED and is_deleting(pod)


@dataclass
class PodCounts:
    """Pods that still have the tracking finalizer, by result.

    Attributes:
        failed: all failed pods.
        counting: failed pods that count towards the backoffLimit.
        unfinished: neither succeeded nor failed.
        indexes: succeeded indexes, those of earlier counts included.
        total: number of succeeded pods, those of earlier counts included.
    """

    succeeded: list[Manifest] = field(default_factory=list)
    failed: list[Manifest] = field(default_factory=list)
    counting: list[Manifest] = field(default_factory=list)
    unfinished: list[Manifest] = field(default_factory=list)
    indexes: set[int] = field(default_factory=set)
    total: int = 0
    only_failed: bool = True

    def is_failed(self, pod: Manifest) -> bool:
        """Whether it has failed: by its phase; unless podReplacementPolicy is Failed, also when terminating.

        https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy
        """
        if pod["status"]["phase"] == "Failed":
            return True
        return not self.only_failed and is_terminating(pod)


def count_finished(job: Manifest, pods: Iterable[Manifest]) -> PodCounts:
    """Count the pods that have ended since the last count."""
    spec, status = job["spec"], job["status"]
    counted = PodCounts(only_failed=spec["podReplacementPolicy"] == "Failed")
    counted.indexes = parsed_intervals(status.get("completedIndexes", ""))
    for pod in pods:
        if TRACKING not in finalizers(pod):
            continue
        if pod["status"]["phase"] == "Succeeded":
            counted.succeeded.append(pod)
            counted.indexes.add(index_of(pod))
        elif counted.is_failed(pod):
            counted.failed.append(pod)
            if apply_policy(spec.get("podFailurePolicy"), pod).counts:
                counted.counting.append(pod)
        else:
            counted.unfinished.append(pod)
    if spec["completionMode"] == "Indexed":
        counted.total = len(counted.indexes)
    else:
        counted.indexes.clear()
        counted.total = status.get("succeeded", 0) + len(counted.succeeded)
    return counted


def intervals(indexes: Iterable[int]) -> str:
    """Format status.completedIndexes: `0,2-5,7`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(",".join(map(str, part)) if len(part) < 3 else f"{part[0]}-{part[-1]}" for part in parts)


def parsed_intervals(text: str) -> set[int]:
    """Parse the format of `intervals`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
