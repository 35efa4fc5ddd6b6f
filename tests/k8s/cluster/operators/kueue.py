"""Kueue: Jobs, JobSets and TrainJobs of a queue are suspended until admitted.

https://kueue.sigs.k8s.io/docs/concepts/workload/
https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/
A ClusterQueue admits no workload that requests a resource which it does not cover (seen on Kueue 0.19).
Not emulated: ClusterQueues as objects, flavors, quotas (the test sets whether there is capacity and which
resources are covered), other kinds; the pods of a TrainJob, whose template is in its runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster.api.events import record_event
from cluster.api.store import Store
from cluster.objects import (
    JOBS,
    OPERATORS,
    Manifest,
    Resource,
    controller_of,
    generated_name,
    is_deleting,
    is_true,
    set_condition,
)
from cluster.operators.jobset_children import JOB_SETS, owner_ref

WORKLOADS, LOCAL_QUEUES = OPERATORS["kueue"]
_KINDS = (JOBS, JOB_SETS, OPERATORS["trainer"][0])
QUEUE = "kueue.x-k8s.io/queue-name"
_BY = "batch/job-kueue-controller"


@dataclass
class Kueue:
    """Webhook and controller.

    Attributes:
        full: why no workload is admitted; empty: there is capacity.
        covered: the resources that the ClusterQueue covers; None: all.
    """

    store: Store
    full: str = ""
    covered: tuple[str, ...] | None = None

    def queue(self, name: str, namespace: str = "default") -> None:
        """Create a LocalQueue."""
        self.store.create(
            LOCAL_QUEUES, namespace, {"metadata": {"name": name}, "spec": {"clusterQueue": "all"}}
        )

    def set_capacity(self, full: str = "") -> None:
        """Set whether there is capacity, or why there is none."""
        self.full = full
        self.store.poke()

    def preempt(self, job: str, why: str) -> None:
        """Preempt an admitted workload: its job is suspended and pending again."""

        def evict(workload: Manifest) -> None:
            set_condition(workload, "Evicted", "True", "Preempted", why)
            set_condition(workload, "Preempted", "True", "InClusterQueue", why)
            for kind in ("QuotaReserved", "Admitted"):
                set_condition(workload, kind, "False", "Pending", why)

        with self.store.lock:
            found = next(
                one
                for resource in _KINDS
                for one in self.store.select(resource)
                if one["metadata"]["name"] == job
            )
            self._update(self._workload(found), evict)
            self._suspend(found, True)

    def admit(self, resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        """Webhook: suspend a new job of a queue."""
        if resource in _KINDS and _queue_of(obj):
            obj["spec"]["suspend"] = True

    def sync(self) -> None:
        """Reconcile all jobs once."""
        with self.store.lock:
            for job in (job for resource in _KINDS for job in self.store.select(resource)):
                if _queue_of(job) and not is_deleting(job):
                    self._sync_job(job)

    def _sync_job(self, job: Manifest) -> None:
        workload = self._workload(job)
        ended = any(is_true(job, kind) for kind in ("Complete", "Completed", "Failed"))
        if ended or not job["spec"]["suspend"]:
            return
        queue, namespace = _queue_of(job), job["metadata"]["namespace"]
        if self.store.find(LOCAL_QUEUES, namespace, queue) is None:
            self._mark_pending(workload, "Inadmissible", f"LocalQueue {queue} doesn't exist")
        elif (uncovered := self._uncovered(job)) is not None:
            why = f"couldn't assign flavors to pod set main: resource {uncovered} unavailable in ClusterQueue"
            self._mark_pending(workload, "NoMatchingFlavor", why)
        elif self.full:
            self._mark_pending(workload, "Pending", self.full)
        else:
            self._admit_workload(job, workload)

    def _uncovered(self, job: Manifest) -> str | None:
        """A resource that the job's pods request and the ClusterQueue does not cover."""
        if self.covered is None:
            return None
        requested = {name for template in _templates(job) for name in _requests(template)}
        return min(requested - set(self.covered), default=None)

    def _mark_pending(self, workload: Manifest, reason: str, why: str) -> None:
        self._update(workload, lambda obj: _set(obj, "QuotaReserved", "False", reason, why))

    def _admit_workload(self, job: Manifest, workload: Manifest) -> None:
        def change(obj: Manifest) -> None:
            set_condition(obj, "QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue all")
            set_condition(obj, "Admitted", "True", "Admitted", "The workload is admitted")
            for kind in ("Evicted", "Preempted"):
                if is_true(obj, kind):
                    set_condition(obj, kind, "False", "QuotaReserved", "Previously: preempted")

        self._update(workload, change)
        self._suspend(job, False)
        record_event(self.store, job, "Normal", "Started", "Admitted by clusterQueue all", _BY)

    def _workload(self, job: Manifest) -> Manifest:
        """Workload of a job; created if missing."""
        uid, name, namespace = (job["metadata"][key] for key in ("uid", "name", "namespace"))
        for found in self.store.select(WORKLOADS, namespace):
            if (controller_of(found) or {}).get("uid") == uid:
                return found
        metadata = {
            "name": generated_name(f"{job['kind'].lower()}-{name}-"),
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [owner_ref(job)],
        }
        pod_sets = [{"name": "main", "count": job["spec"].get("parallelism", 1)}]
        spec = {"queueName": _queue_of(job), "active": True, "podSets": pod_sets}
        workload = self.store.create(WORKLOADS, namespace, {"metadata": metadata, "spec": spec})
        message = f"Created Workload: {namespace}/{workload['metadata']['name']}"
        record_event(self.store, job, "Normal", "CreatedWorkload", message, _BY)
        return workload

    def _suspend(self, job: Manifest, value: bool) -> None:
        def change(obj: Manifest) -> None:
            obj["spec"]["suspend"] = value

        resource = next(one for one in _KINDS if one.kind == job["kind"])
        self.store.update(resource, job["metadata"]["namespace"], job["metadata"]["name"], change)

    def _update(self, workload: Manifest, change: Callable[[Manifest], None]) -> None:
        metadata = workload["metadata"]
        self.store.update(WORKLOADS, metadata["namespace"], metadata["name"], change)


def _templates(job: Manifest) -> list[Manifest]:
    """The pod templates of a Job or a JobSet."""
    spec = job["spec"]
    jobs = [entry["template"]["spec"] for entry in spec.get("replicatedJobs") or ()]
    return [found["template"] for found in (*jobs, spec) if "template" in found]


def _requests(template: Manifest) -> set[str]:
    """The names of what the containers request; a limit alone is a request too."""
    resources = [container.get("resources") or {} for container in template["spec"]["containers"]]
    return {name for each in resources for kind in ("requests", "limits") for name in each.get(kind) or {}}


def _queue_of(job: Manifest) -> str:
    return str((job["metadata"].get("labels") or {}).get(QUEUE, ""))


def _set(obj: Manifest, kind: str, status: str, reason: str, message: str) -> None:
    set_condition(obj, kind, status, reason, message)
