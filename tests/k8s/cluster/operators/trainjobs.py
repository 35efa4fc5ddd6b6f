"""Kubeflow Trainer v2: create a JobSet from a TrainJob and its TrainingRuntime.

By https://www.kubeflow.org/docs/components/trainer/ and, where that is silent, the project's controller
(v2.3). Supported of the TrainJob's trainer: numNodes, image, command, args, env, resourcesPerNode.
Not emulated: ClusterTrainingRuntimes, initializers, runtimePatches, podGroupPolicy, managedBy, and of the
policies all but torch's variables and PlainML (none).
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import yaml

from cluster.api.errors import ApiError
from cluster.api.events import record_event
from cluster.api.store import Store
from cluster.objects import (
    CONFIG_MAPS,
    OPERATORS,
    Manifest,
    controller_of,
    find_condition,
    is_deleting,
    is_true,
    seconds,
    set_condition,
)
from cluster.operators.jobset_children import JOB_SETS, owner_ref

NAME = "trainjob_controller"
TRAIN_JOBS, RUNTIMES = OPERATORS["trainer"][:2]
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
NODE = "node"
_PORT = 29500
_RETRY_S = 1.0


@dataclass
class TrainJobController:
    """Reconcile JobSet and status of every TrainJob."""

    store: Store

    def sync(self) -> float | None:
        """Reconcile all TrainJobs once; returns the seconds until one is due again."""
        with self.store.lock:
            due = [self._sync_one(job) for job in self.store.select(TRAIN_JOBS) if not is_deleting(job)]
        return min((wait for wait in due if wait is not None), default=None)

    def _sync_one(self, job: Manifest) -> float | None:
        before = copy.deepcopy(job.setdefault("status", {}))
        due = None
        if not _is_finished(job):
            try:
                self._create_job_set(job)
            except ApiError as error:
                message = f"TrainJob resources reconciliation failed: {error.message}"
                record_event(self.store, job, "Warning", "TrainJobResourcesCreationFailed", message, NAME)
                due = _RETRY_S
        _update_suspended(job)
        self._copy_status(job)
        limit = self._deadline(job)
        if job["status"] != before:
            metadata, status = job["metadata"], job["status"]

            def change(obj: Manifest) -> None:
                obj["status"] = status

            self.store.update(TRAIN_JOBS, metadata["namespace"], metadata["name"], change)
        return min((wait for wait in (due, limit) if wait is not None), default=None)

    def _create_job_set(self, job: Manifest) -> None:
        """Create the JobSet; of an existing one only `suspend` is updated."""
        runtime = self._snapshot(job)
        wanted = job_set_of(job, runtime)
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        found = self.store.find(JOB_SETS, namespace, name)
        if found is None:
            self.store.create(JOB_SETS, namespace, wanted)
            return
        suspend = bool(job["spec"].get("suspend"))
        if bool(found["spec"].get("suspend")) != suspend:

            def change(obj: Manifest) -> None:
                obj["spec"]["suspend"] = suspend

            self.store.update(JOB_SETS, namespace, name, change)

    def _snapshot(self, job: Manifest) -> Manifest:
        """The runtime as of the TrainJob's start, kept in a ConfigMap of the TrainJob."""
        metadata = job["metadata"]
        name = f"{metadata['name']}-runtime-snapshot"
        existing = self.store.find(CONFIG_MAPS, metadata["namespace"], name)
        if existing is not None:
            if (controller_of(existing) or {}).get("uid") != metadata["uid"]:
                raise ApiError(
                    500, "InternalError", "a snapshot configmap exists but is owned by another object"
                )
            found: Manifest = yaml.safe_load(existing["data"]["runtime"])
            return found
        runtime = self.store.get(RUNTIMES, metadata["namespace"], job["spec"]["runtimeRef"]["name"])
        head = {"name": name, "ownerReferences": [owner_ref(job)]}
        data = {"runtime": yaml.safe_dump(runtime)}
        self.store.create(CONFIG_MAPS, metadata["namespace"], {"metadata": head, "data": data})
        return runtime

    def _copy_status(self, job: Manifest) -> None:
        """Copy conditions of the JobSet, Completed as Complete; nothing once it has expired."""
        found = self.store.find(JOB_SETS, job["metadata"]["namespace"], job["metadata"]["name"])
        if found is None:
            return
        for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
            if is_true(found, theirs):
                condition = find_condition(found, theirs) or {}
                if find_condition(job, ours) is None:
                    set_condition(job, ours, "True", condition["reason"], condition["message"])
        job["status"]["jobsStatus"] = (found.get("status") or {}).get("replicatedJobsStatus", [])

    def _deadline(self, job: Manifest) -> float | None:
        """Delete the JobSet after spec.activeDeadlineSeconds, counted from creation or the last resume."""
        limit = job["spec"].get("activeDeadlineSeconds")
        if not limit or _is_finished(job) or job["spec"].get("suspend"):
            return None
        start = job["metadata"]["creationTimestamp"]
        resumed = find_condition(job, "Suspended")
        if resumed is not None and resumed["status"] == "False":
            start = resumed["lastTransitionTime"]
        left = seconds(start) + float(limit) - time.time()
        if left > 0:
            return left
        set_condition(job, "Failed", "True", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        if self.store.find(JOB_SETS, namespace, name) is not None:
            self.store.delete(JOB_SETS, namespace, name)
        return None


def job_set_of(job: Manifest, runtime: Manifest) -> Manifest:
    """The runtime's template with the TrainJob's overrides."""
    template, trainer = copy.deepcopy(runtime["spec"]["template"]), job["spec"].get("trainer") or {}
    policy = runtime["spec"].get("mlPolicy") or {}
    for replicated in template["spec"]["replicatedJobs"]:
        labels = (replicated["template"].get("metadata") or {}).get("labels") or {}
        if labels.get(STEP) == "trainer":
            count = trainer.get("numNodes", policy.get("numNodes", 1))
            replicated["replicas"] = 1
            replicated["template"]["spec"] |= {"parallelism": count, "completions": count}
            pod = replicated["template"]["spec"]["template"]["spec"]
            for container in pod["containers"]:
                if container["name"] == NODE:
                    _override(container, trainer)
                    if "torch" in policy:
                        _set_env(container, _torch_env(job, template, trainer, count))
    name = job["metadata"]["name"]
    head = {"name": name, **(template.get("metadata") or {}), "ownerReferences": [owner_ref(job)]}
    suspend = {"suspend": job["spec"]["suspend"]} if "suspend" in job["spec"] else {}
    return {"metadata": head, "spec": {**template["spec"], **suspend}}


def _override(container: Manifest, trainer: Manifest) -> None:
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    _set_env(container, trainer.get("env") or [])
    resources = container.setdefault("resources", {})
    for group, amounts in (trainer.get("resourcesPerNode") or {}).items():
        resources[group] = {**(resources.get(group) or {}), **amounts}


def _set_env(container: Manifest, variables: list[Manifest]) -> None:
    """Set variables, replacing those of the same name."""
    names = {variable["name"] for variable in variables}
    kept = [variable for variable in container.get("env") or [] if variable["name"] not in names]
    container["env"] = [*kept, *variables]


def _torch_env(job: Manifest, template: Manifest, trainer: Manifest, count: int) -> list[Manifest]:
    name = job["metadata"]["name"]
    subdomain = (template["spec"].get("network") or {}).get("subdomain", name)
    rank = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    plain = {
        "PET_NNODES": str(count),
        "PET_NPROC_PER_NODE": str(trainer.get("numProcPerNode", "auto")),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{subdomain}",
        "PET_MASTER_PORT": str(_PORT),
    }
    return [
        *({"name": key, "value": value} for key, value in plain.items()),
        {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": rank}},
    ]


def _is_finished(job: Manifest) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def _update_suspended(job: Manifest) -> None:
    if job["spec"].get("suspend"):
        set_condition(job, "Suspended", "True", "Suspended", "TrainJob is suspended")
    elif is_true(job, "Suspended"):
        set_condition(job, "Suspended", "False", "Resumed", "TrainJob is resumed")
