"""A Job's pods: made from its template, told apart, counted."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from k8s_defaults import INDEX, TRACKING
from k8s_failure_policy import judge
from k8s_objects import PODS, Manifest, controller_of, finalizers, generated_name, is_deleting
from k8s_store import Store

_ENDED = ("Succeeded", "Failed")


def pod_of(job: Manifest, index: int) -> Manifest:
    """A new pod of the Job.

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
    """All that the Job manages, by index and age."""
    uid = job["metadata"]["uid"]
    mine = store.select(
        PODS, job["metadata"]["namespace"], lambda p: (controller_of(p) or {}).get("uid") == uid
    )
    return sorted(mine, key=index_of)


def index_of(pod: Manifest) -> int:
    """Its completion index; -1 without one."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def is_active(pod: Manifest) -> bool:
    """Neither ended nor being removed."""
    return pod["status"]["phase"] not in _ENDED and not is_deleting(pod)


def is_terminating(pod: Manifest) -> bool:
    """Being removed and not yet ended."""
    return pod["status"]["phase"] not in _ENDED and is_deleting(pod)


@dataclass
class Counted:
    """Pods that still hold the tracking finalizer, by how they ended.

    Attributes:
        failed: ended badly, whether it counts or not.
        counting: those of them that go towards the backoffLimit.
        unfinished: neither.
        indexes: that have succeeded, also in earlier looks.
        total: how many have succeeded in all.
    """

    succeeded: list[Manifest] = field(default_factory=list)
    failed: list[Manifest] = field(default_factory=list)
    counting: list[Manifest] = field(default_factory=list)
    unfinished: list[Manifest] = field(default_factory=list)
    indexes: set[int] = field(default_factory=set)
    total: int = 0
    only_failed: bool = True

    def is_failed(self, pod: Manifest) -> bool:
        """With podReplacementPolicy Failed only the phase counts; else one that is being removed has failed.

        https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy
        """
        if pod["status"]["phase"] == "Failed":
            return True
        return not self.only_failed and is_terminating(pod)


def count_finished(job: Manifest, pods: Iterable[Manifest]) -> Counted:
    """What has ended since the last look."""
    spec, status = job["spec"], job["status"]
    counted = Counted(only_failed=spec["podReplacementPolicy"] == "Failed")
    counted.indexes = parsed_intervals(status.get("completedIndexes", ""))
    for pod in pods:
        if TRACKING not in finalizers(pod):
            continue
        if pod["status"]["phase"] == "Succeeded":
            counted.succeeded.append(pod)
            counted.indexes.add(index_of(pod))
        elif counted.is_failed(pod):
            counted.failed.append(pod)
            if judge(spec.get("podFailurePolicy"), pod).counts:
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
    """status.completedIndexes: `0,2-5,7`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(",".join(map(str, part)) if len(part) < 3 else f"{part[0]}-{part[-1]}" for part in parts)


def parsed_intervals(text: str) -> set[int]:
    """The inverse of `intervals`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
