"""Child Jobs of a JobSet, with the labels that identify them and their pods."""

from __future__ import annotations

import copy
import hashlib

from cluster.objects import OPERATORS, Manifest

(JOB_SETS,) = OPERATORS["jobset"]
_PREFIX = "jobset.sigs.k8s.io/"
NAME_KEY = f"{_PREFIX}jobset-name"
UID_KEY = f"{_PREFIX}jobset-uid"
REPLICATED_KEY = f"{_PREFIX}replicatedjob-name"
RESTART_KEY = f"{_PREFIX}restart-attempt"


def child_name(job_set: Manifest, replicated: Manifest, index: int) -> str:
    """`<jobset>-<replicated job>-<index>`; its pods are `<job>-<completion index>`."""
    return f"{job_set['metadata']['name']}-{replicated['name']}-{index}"


def new_child(job_set: Manifest, replicated: Manifest, index: int) -> Manifest:
    """Build a child Job for the JobSet's current restart attempt."""
    template = copy.deepcopy(replicated["template"])
    job = {"metadata": template.get("metadata") or {}, "spec": template["spec"]}
    pods = job["spec"]["template"].setdefault("metadata", {})
    labels = _labels(job_set, replicated, index)
    for metadata in (job["metadata"], pods):
        for group in ("labels", "annotations"):
            metadata[group] = {**(metadata.get(group) or {}), **labels}
    network = job_set["spec"].get("network") or {}
    if network.get("enableDNSHostnames"):
        subdomain = network.get("subdomain") or job_set["metadata"]["name"]
        job["spec"]["template"]["spec"]["subdomain"] = subdomain
    job["spec"]["suspend"] = bool(job_set["spec"].get("suspend"))
    job["metadata"] |= {
        "name": child_name(job_set, replicated, index),
        "ownerReferences": [owner_ref(job_set)],
    }
    return job


def owner_ref(owner: Manifest) -> Manifest:
    """ownerReference to the controller of an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _labels(job_set: Manifest, replicated: Manifest, index: int) -> dict[str, str]:
    """Labels, also used as annotations, of the Job and its pods."""
    metadata, replicated_jobs = job_set["metadata"], job_set["spec"]["replicatedJobs"]
    before = replicated_jobs[: replicated_jobs.index(replicated)]
    name = f"{metadata['namespace']}/{child_name(job_set, replicated, index)}"
    total = sum(one.get("replicas", 1) for one in replicated_jobs)
    first = sum(one.get("replicas", 1) for one in before)
    values = {
        "jobset-name": metadata["name"],
        "jobset-uid": metadata["uid"],
        "replicatedjob-name": replicated["name"],
        "restart-attempt": job_set["status"].get("restarts", 0),
        "replicatedjob-replicas": replicated.get("replicas", 1),
        "global-replicas": total,
        "job-index": index,
        "job-key": hashlib.sha1(name.encode()).hexdigest(),
        "job-global-index": first + index,
        "group-name": replicated.get("groupName", "default"),
        "group-replicas": total,
        "job-group-index": first + index,
    }
    return {f"{_PREFIX}{key}": str(value) for key, value in values.items()}
