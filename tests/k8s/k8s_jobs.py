"""The Job controller: what the documentation says of batch/v1 Jobs, Indexed ones above all.

https://kubernetes.io/docs/concepts/workloads/controllers/job/ and the kube-controller-manager's behaviour
where that says less (1.34: Complete and Failed come after the last pod has ended, SuccessCriteriaMet and
FailureTarget before them).
Not emulated: backoffLimitPerIndex, successPolicy, managedBy, restartPolicy OnFailure.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field

from k8s_defaults import TRACKING
from k8s_events import tell
from k8s_failure_policy import judge
from k8s_job_pods import (
    Counted,
    count_finished,
    index_of,
    intervals,
    is_active,
    is_terminating,
    pod_of,
    pods_of,
)
from k8s_objects import (
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
from k8s_status import ApiError
from k8s_store import Store

NAME = "job-controller"
MAX_BACK_OFF_S = 600.0
# A pod that could not be created is tried again after this.
_RETRY_S = 1.0


@dataclass
class _BackOff:
    """Failures since the last success, and when the last one was."""

    failures: int = 0
    last: float = 0.0


@dataclass
class JobController:
    """Keeps every Job's pods and status as they should be.

    Attributes:
        back_off_s: before a replacement: doubled with each failure since the last success; really 10 s.
    """

    store: Store
    back_off_s: float = 10.0
    _back_offs: dict[str, _BackOff] = field(default_factory=dict)

    def sync(self) -> float | None:
        """All Jobs once; the seconds until one of them wants to be looked at again."""
        # One transaction: no uncountedTerminatedPods are needed.
        with self.store.lock:
            due = [self._sync_job(job) for job in self.store.select(JOBS)]
            self._release_orphans()
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _release_orphans(self) -> None:
        """Pods whose Job has gone are nobody's to count."""
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

    def back_off(self, job: Manifest, counted: Counted) -> float:
        """Seconds until the next pod may be created. Ignored failures count here too."""
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
        """With the pod's grace; its finalizer stays."""
        metadata = pod["metadata"]
        self.store.delete(PODS, metadata["namespace"], metadata["name"])
        self.event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {metadata['name']}")

    def release(self, pod: Manifest) -> None:
        """It has been counted: the finalizer goes."""

        def change(obj: Manifest) -> None:
            left = [name for name in finalizers(obj) if name != TRACKING]
            obj["metadata"]["finalizers"] = left
            if not left:
                del obj["metadata"]["finalizers"]

        metadata = pod["metadata"]
        if TRACKING in finalizers(pod):
            self.store.update(PODS, metadata["namespace"], metadata["name"], change)

    def event(self, job: Manifest, kind: str, reason: str, message: str) -> None:
        """About the Job."""
        tell(self.store, job, kind, reason, message, NAME)


class _Sync:
    """One look at one Job; its status is changed in place."""

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
        """Returns the seconds until the next look, if time alone changes something."""
        suspended = bool(self._spec.get("suspend"))
        if not suspended and ("startTime" not in self._status or is_true(self._job, "Suspended")):
            # Also when it is resumed: the deadline's time begins anew.
            self._status["startTime"] = now()
        counted = count_finished(self._job, self._pods)
        wait = self._controller.back_off(self._job, counted)
        due = self._decide_failure(counted)
        if self._target is None:
            if not is_deleting(self._job):
                created_due = self._manage(counted, wait)
                due = min((s for s in (due, created_due) if s is not None), default=None)
                self._note_suspension(suspended)
            self._decide_success(counted)
        else:
            for pod in self._active:
                self._controller.delete_pod(self._job, pod)
                self._terminating += 1
            self._active = []
        self._count(counted)
        self._finish()
        self._numbers()
        return due

    @property
    def _target(self) -> str | None:
        return next(
            (kind for kind in ("FailureTarget", "SuccessCriteriaMet") if is_true(self._job, kind)), None
        )

    def _decide_failure(self, counted: Counted) -> float | None:
        """FailureTarget: by a FailJob rule, by the backoffLimit, by the deadline; in this order."""
        if self._target is not None:
            return None
        policy = self._spec.get("podFailurePolicy")
        failed = [pod for pod in self._pods if counted.is_failed(pod)]
        message = next((said for pod in failed if (said := judge(policy, pod).message)), "")
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

    def _decide_success(self, counted: Counted) -> None:
        wanted = self._spec.get("completions") or 1
        if counted.total >= wanted and not self._active:
            self._set_target(
                "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
            )

    def _set_target(self, kind: str, reason: str, message: str) -> None:
        set_condition(self._job, kind, "True", reason, message)

    def _manage(self, counted: Counted, wait: float) -> float | None:
        """Create what is missing; a suspended Job has no pods."""
        if self._spec.get("suspend"):
            # Without its finalizer: a pod that suspension ends is no failure.
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

    def _free_indexes(self, counted: Counted, only_failed: bool) -> list[int]:
        taken = {index_of(pod) for pod in self._active} | counted.indexes
        if only_failed:
            taken |= {index_of(pod) for pod in self._pods if is_terminating(pod)}
        return [index for index in range(self._spec.get("completions") or 1) if index not in taken]

    def _create(self, indexes: list[int]) -> float | None:
        for index in indexes:
            try:
                pod = self._store.create(PODS, self._job["metadata"]["namespace"], pod_of(self._job, index))
            except ApiError as error:
                self._controller.event(
                    self._job, "Warning", "FailedCreate", f"Error creating: {error.message}"
                )
                return _RETRY_S
            self._active.append(pod)
            said = f"Created pod: {pod['metadata']['name']}"
            self._controller.event(self._job, "Normal", "SuccessfulCreate", said)
        return None

    def _note_suspension(self, suspended: bool) -> None:
        if suspended and set_condition(self._job, "Suspended", "True", "JobSuspended", "Job suspended"):
            self._controller.event(self._job, "Normal", "Suspended", "Job suspended")
        elif not suspended and is_true(self._job, "Suspended"):
            set_condition(self._job, "Suspended", "False", "JobResumed", "Job resumed")
            self._controller.event(self._job, "Normal", "Resumed", "Job resumed")

    def _count(self, counted: Counted) -> None:
        """Counters go up and finalizers go; every pod of a Job that has failed is a failure."""
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
        """Complete or Failed, once no pod is left that still ends."""
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

    def _numbers(self) -> None:
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
