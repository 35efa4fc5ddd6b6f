"""Kueue, as a Job, JobSet or TrainJob of one of its queues meets it: suspended until it is admitted.

https://kueue.sigs.k8s.io/docs/concepts/workload/
https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/
Not emulated: ClusterQueues, flavors, quotas (the test says whether there is room), other kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k8s_events import tell
from k8s_jobset_children import JOB_SETS, owner_ref
from k8s_objects import (
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
from k8s_store import Store

WORKLOADS, LOCAL_QUEUES = OPERATORS["kueue"]
_KINDS = (JOBS, JOB_SETS, OPERATORS["trainer"][0])
QUEUE = "kueue.x-k8s.io/queue-name"
_BY = "batch/job-kueue-controller"


@dataclass
class Kueue:
    """Admission and controller.

    Attributes:
        full: why no workload is admitted now; empty: there is room.
    """

    store: Store
    full: str = ""

    def queue(self, name: str, namespace: str = "default") -> None:
        """Make a LocalQueue."""
        self.store.create(
            LOCAL_QUEUES, namespace, {"metadata": {"name": name}, "spec": {"clusterQueue": "all"}}
        )

    def room(self, full: str = "") -> None:
        """There is room; or there is none, and why."""
        self.full = full
        self.store.poke()

    def preempt(self, job: str, why: str) -> None:
        """An admitted workload must give way: its Job is suspended, and waits again."""

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
        """The webhook: a new job of a queue is suspended."""
        if resource in _KINDS and _queue_of(obj):
            obj["spec"]["suspend"] = True

    def sync(self) -> None:
        """All jobs once."""
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
            self._refuse(workload, "Inadmissible", f"LocalQueue {queue} doesn't exist")
        elif self.full:
            self._refuse(workload, "Pending", self.full)
        else:
            self._let_in(job, workload)

    def _refuse(self, workload: Manifest, reason: str, why: str) -> None:
        self._update(workload, lambda obj: _set(obj, "QuotaReserved", "False", reason, why))

    def _let_in(self, job: Manifest, workload: Manifest) -> None:
        def change(obj: Manifest) -> None:
            set_condition(obj, "QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue all")
            set_condition(obj, "Admitted", "True", "Admitted", "The workload is admitted")
            for kind in ("Evicted", "Preempted"):
                if is_true(obj, kind):
                    set_condition(obj, kind, "False", "QuotaReserved", "Previously: preempted")

        self._update(workload, change)
        self._suspend(job, False)
        tell(self.store, job, "Normal", "Started", "Admitted by clusterQueue all", _BY)

    def _workload(self, job: Manifest) -> Manifest:
        """The Job's own; made where it has none."""
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
        made = self.store.create(WORKLOADS, namespace, {"metadata": metadata, "spec": spec})
        said = f"Created Workload: {namespace}/{made['metadata']['name']}"
        tell(self.store, job, "Normal", "CreatedWorkload", said, _BY)
        return made

    def _suspend(self, job: Manifest, value: bool) -> None:
        def change(obj: Manifest) -> None:
            obj["spec"]["suspend"] = value

        resource = next(one for one in _KINDS if one.kind == job["kind"])
        self.store.update(resource, job["metadata"]["namespace"], job["metadata"]["name"], change)

    def _update(self, workload: Manifest, change: Callable[[Manifest], None]) -> None:
        metadata = workload["metadata"]
        self.store.update(WORKLOADS, metadata["namespace"], metadata["name"], change)


def _queue_of(job: Manifest) -> str:
    return str((job["metadata"].get("labels") or {}).get(QUEUE, ""))


def _set(obj: Manifest, kind: str, status: str, reason: str, message: str) -> None:
    set_condition(obj, kind, status, reason, message)
