"""Job controller: batch/v1 Jobs, above all Indexed ones.

By https://kubernetes.io/docs/concepts/workloads/controllers/job/ and, where that is silent, the behaviour of
kube-controller-manager (1.34: Complete and Failed come after the last pod has ended, SuccessCriteriaMet and
FailureTarget before them).
Not emulated: backoffLimitPerIndex, successPolicy, managedBy, restartPolicy OnFailure.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field

from cluster.api.defaults import TRACKING
from cluster.api.errors import ApiError
from cluster.api.events import record_event
from cluster.api.store import Store
from cluster.controllers.job_pods import (
    PodCounts,
    count_finished,
    index_of,
    intervals,
    is_active,
    is_terminating,
    new_pod,
    pods_of,
)
from cluster.controllers.pod_failure_policy import apply_policy
from cluster.objects import (
    JOBS,
    PODS,
    Manifest,
    controller_of,
    finalizers,
    find_condition,
    is_deleting,
    is_true,
    now,
    seconds,
    set_condition,
)

NAME = "job-controller"
MAX_BACK_OFF_S = 600.0
# Before another attempt to create a pod.
_RETRY_S = 1.0


@dataclass
class _BackOff:
    """Failures since the last success, and the time of the last one."""

    failures: int = 0
    last: float = 0.0


@dataclass
class JobController:
    """Reconcile pods and status of every Job.

    Attributes:
        back_off_s: delay of a replacement, doubled with each failure since the last success; 10 s in
            Kubernetes.
    """

    store: Store
    back_off_s: float = 10.0
    _back_offs: dict[str, _BackOff] = field(default_factory=dict)

    def sync(self) -> float | None:
        """Reconcile all Jobs once; returns the seconds until one is due again."""
        # In one transaction, so that uncountedTerminatedPods is not needed.
        with self.store.lock:
            due = [self._sync_job(job) for job in self.store.select(JOBS)]
            self._release_orphans()
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _release_orphans(self) -> None:
        """Remove the tracking finalizer of pods whose Job was deleted."""
        living = {job["metadata"]["uid"] for job in self.store.select(JOBS)}
        for pod in self.store.select(PODS):
            if TRACKING in finalizers(pod) and (controller_of(pod) or {}).get("uid") not in living:
                self.release(pod)

    def _sync_job(self, job: Manifest) -> float | None:
        if is_true(job, "Complete") or is_true(job, "Failed"):
            return None
        before = copy.deepcopy(job)
        due = _Sync(self, job).run()
        self._write(before, job)
        return due

    def _write(self, before: Manifest, job: Manifest) -> None:
        if job["status"] == before["status"]:
            return

        def change(obj: Manifest) -> None:
            obj["status"] = job["status"]

        metadata = job["metadata"]
        self.store.update(JOBS, metadata["namespace"], metadata["name"], change)

    def back_off(self, job: Manifest, counted: PodCounts) -> float:
        """Seconds until the next pod may be created; ignored failures count too."""
        record = self._back_offs.setdefault(job["metadata"]["uid"], _BackOff())
        if counted.succeeded:
            record.failures = 0
        if counted.failed:
            record.failures += len(counted.failed)
            record.last = time.time()
        if not record.failures:
            return 0.0
        wait = min(self.back_off_s * 2 ** (record.failures - 1), MAX_BACK_OFF_S)
        return max(record.last + float(wait) - time.time(), 0.0)

    def delete_pod(self, job: Manifest, pod: Manifest) -> None:
        """Delete with the pod's grace period; its finalizer stays."""
        metadata = pod["metadata"]
        self.store.delete(PODS, metadata["namespace"], metadata["name"])
        self.event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {metadata['name']}")

    def release(self, pod: Manifest) -> None:
        """Remove the tracking finalizer of a counted pod."""

        def change(obj: Manifest) -> None:
            remaining = [name for name in finalizers(obj) if name != TRACKING]
            obj["metadata"]["finalizers"] = remaining
            if not remaining:
                del obj["metadata"]["finalizers"]

        metadata = pod["metadata"]
        if TRACKING in finalizers(pod):
            self.store.update(PODS, metadata["namespace"], metadata["name"], change)

    def event(self, job: Manifest, kind: str, reason: str, message: str) -> None:
        """Record an event of the Job."""
        record_event(self.store, job, kind, reason, message, NAME)


class _Sync:
    """One reconciliation of one Job; its status is changed in place."""

    def __init__(self, controller: JobController, job: Manifest) -> None:
        self._controller = controller
        self._store = controller.store
        self._job = job
        self._spec = job["spec"]
        self._status = job["status"]
        self._pods = pods_of(controller.store, job)
        self._active = [pod for pod in self._pods if is_active(pod)]
        self._terminating = sum(map(is_terminating, self._pods))

    def run(self) -> float | None:
        """Reconcile; returns the seconds until the next run, if only time changes something."""
        suspended = bool(self._spec.get("suspend"))
        if not suspended and ("startTime" not in self._status or is_true(self._job, "Suspended")):
            # Also when it is resumed: activeDeadlineSeconds starts again.
            self._status["startTime"] = now()
        counted = count_finished(self._job, self._pods)
        wait = self._controller.back_off(self._job, counted)
        due = self._decide_failure(counted)
        if self._target is None:
            if not is_deleting(self._job):
                created_due = self._manage(counted, wait)
                due = min((s for s in (due, created_due) if s is not None), default=None)
                self._update_suspended(suspended)
            self._decide_success(counted)
        else:
            for pod in self._active:
                self._controller.delete_pod(self._job, pod)
                self._terminating += 1
            self._active = []
        self._count(counted)
        self._finish()
        self._update_pod_counts()
        return due

    @property
    def _target(self) -> str | None:
        return next(
            (kind for kind in ("FailureTarget", "SuccessCriteriaMet") if is_true(self._job, kind)), None
        )

    def _decide_failure(self, counted: PodCounts) -> float | None:
        """Set FailureTarget by a FailJob rule, the backoffLimit or the deadline, in this order."""
        if self._target is not None:
            return None
        policy = self._spec.get("podFailurePolicy")
        failed = [pod for pod in self._pods if counted.is_failed(pod)]
        message = next((why for pod in failed if (why := apply_policy(policy, pod).message)), "")
        if message:
            self._set_target("FailureTarget", "PodFailurePolicy", message)
            return None
        if self._status.get("failed", 0) + len(counted.counting) > self._spec["backoffLimit"]:
            self._set_target(
                "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
            return None
        limit = self._spec.get("activeDeadlineSeconds")
        if limit is None or self._spec.get("suspend"):
            return None
        left = seconds(self._status["startTime"]) + float(limit) - time.time()
        if left <= 0:
            self._set_target(
                "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
            )
            return None
        return left

    def _decide_success(self, counted: PodCounts) -> None:
        wanted = self._spec.get("completions") or 1
        if counted.total >= wanted and not self._active:
            self._set_target(
                "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
            )

    def _set_target(self, kind: str, reason: str, message: str) -> None:
        set_condition(self._job, kind, "True", reason, message)

    def _manage(self, counted: PodCounts, wait: float) -> float | None:
        """Create missing pods; a suspended Job has none."""
        if self._spec.get("suspend"):
            # Without its finalizer: a pod that is deleted by suspension is no failure.
            for pod in self._active:
                self._controller.release(pod)
                self._controller.delete_pod(self._job, pod)
                self._terminating += 1
            self._active = []
            return None
        wanted = max(min((self._spec.get("completions") or 1) - counted.total, self._spec["parallelism"]), 0)
        for pod in self._active[wanted:]:
            self._controller.release(pod)
            self._controller.delete_pod(self._job, pod)
        self._active = self._active[:wanted]
        only_failed = self._spec["podReplacementPolicy"] == "Failed"
        missing = wanted - len(self._active) - (self._terminating if only_failed else 0)
        if missing <= 0:
            return None
        if wait > 0:
            return wait
        return self._create(self._free_indexes(counted, only_failed)[:missing])

    def _free_indexes(self, counted: PodCounts, only_failed: bool) -> list[int]:
        taken = {index_of(pod) for pod in self._active} | counted.indexes
        if only_failed:
            taken |= {index_of(pod) for pod in self._pods if is_terminating(pod)}
        return [index for index in range(self._spec.get("completions") or 1) if index not in taken]

    def _create(self, indexes: list[int]) -> float | None:
        for index in indexes:
            try:
                pod = self._store.create(PODS, self._job["metadata"]["namespace"], new_pod(self._job, index))
            except ApiError as error:
                self._controller.event(
                    self._job, "Warning", "FailedCreate", f"Error creating: {error.message}"
                )
                return _RETRY_S
            self._active.append(pod)
            message = f"Created pod: {pod['metadata']['name']}"
            self._controller.event(self._job, "Normal", "SuccessfulCreate", message)
        return None

    def _update_suspended(self, suspended: bool) -> None:
        if suspended and set_condition(self._job, "Suspended", "True", "JobSuspended", "Job suspended"):
            self._controller.event(self._job, "Normal", "Suspended", "Job suspended")
        elif not suspended and is_true(self._job, "Suspended"):
            set_condition(self._job, "Suspended", "False", "JobResumed", "Job resumed")
            self._controller.event(self._job, "Normal", "Resumed", "Job resumed")

    def _count(self, counted: PodCounts) -> None:
        """Update the counters and remove finalizers; every pod of a failed Job counts as failed."""
        failed = list(counted.counting)
        releasable = [*counted.succeeded, *counted.failed]
        if self._target is not None or is_deleting(self._job):
            rest = [pod for pod in counted.unfinished if pod not in releasable]
            releasable += rest
            if self._target == "FailureTarget":
                failed += rest
        self._status["failed"] = self._status.get("failed", 0) + len(failed)
        self._status["succeeded"] = counted.total
        if self._spec["completionMode"] == "Indexed":
            self._status["completedIndexes"] = intervals(counted.indexes)
        for pod in releasable:
            self._controller.release(pod)

    def _finish(self) -> None:
        """Set Complete or Failed once no pod is terminating."""
        target = self._target
        if target is None or self._terminating:
            return
        condition = find_condition(self._job, target) or {}
        kind = "Failed" if target == "FailureTarget" else "Complete"
        set_condition(self._job, kind, "True", condition["reason"], condition["message"])
        if kind == "Complete":
            self._status["completionTime"] = now()
            self._controller.event(self._job, "Normal", "Completed", "Job completed")
        else:
            self._controller.event(self._job, "Warning", condition["reason"], condition["message"])

    def _update_pod_counts(self) -> None:
        self._status |= {
            "active": len(self._active),
            "ready": sum(is_true(pod, "Ready") for pod in self._active),
            "terminating": self._terminating,
            "uncountedTerminatedPods": {},
        }
        for name in ("active", "failed", "succeeded"):
            if not self._status.get(name):
                self._status.pop(name, None)
        if not self._status.get("completedIndexes"):
            self._status.pop("completedIndexes", None)
