"""JobSet controller, v1alpha2: child Jobs, all recreated after a failure.

By https://jobset.sigs.k8s.io/docs/concepts/ and, where that is silent, the project's controller (v0.12);
the Job controller (controllers/jobs.py) runs the child Jobs.
Not emulated: startupPolicy InOrder, dependsOn, the actions RestartJob*, InPlaceRestart, coordinator,
exclusive placement, volumeClaimPolicies, managedBy, targetReplicatedJobs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.api.errors import ApiError
from cluster.api.events import record_event
from cluster.api.store import Deletion, Store
from cluster.objects import (
    JOBS,
    SERVICES,
    Manifest,
    controller_of,
    find_condition,
    is_deleting,
    is_true,
    seconds,
    set_condition,
)
from cluster.operators.jobset_children import (
    JOB_SETS,
    NAME_KEY,
    REPLICATED_KEY,
    RESTART_KEY,
    child_name,
    new_child,
    owner_ref,
)

NAME = "jobset-controller"
_RETRY_S = 1.0
# Action of a rule -> whether the restart counts towards maxRestarts.
_RESTARTS = {"RestartJobSet": True, "RestartJobSetAndIgnoreMaxRestarts": False}


@dataclass
class _Children:
    """Jobs of a JobSet: those of earlier restart attempts, and the current ones by state."""

    previous: list[Manifest] = field(default_factory=list)
    active: list[Manifest] = field(default_factory=list)
    successful: list[Manifest] = field(default_factory=list)
    failed: list[Manifest] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        jobs = (*self.previous, *self.active, *self.successful, *self.failed)
        return {job["metadata"]["name"] for job in jobs}


@dataclass
class JobSetController:
    """Reconcile Jobs, Service and status of every JobSet.

    Attributes:
        ttl_scale: factor of ttlSecondsAfterFinished.
    """

    store: Store
    ttl_scale: float = 1.0

    def sync(self) -> float | None:
        """Reconcile all JobSets once; returns the seconds until one is due again."""
        with self.store.lock:
            due = [self._sync_one(job_set) for job_set in self.store.select(JOB_SETS)]
        return min((wait for wait in due if wait is not None), default=None)

    def _sync_one(self, job_set: Manifest) -> float | None:
        if is_deleting(job_set):
            return None
        before = copy.deepcopy(job_set.setdefault("status", {}))
        due = self._reconcile(job_set)
        if job_set["status"] != before:
            metadata, status = job_set["metadata"], job_set["status"]

            def change(obj: Manifest) -> None:
                obj["status"] = status

            if self.store.find(JOB_SETS, metadata["namespace"], metadata["name"]) is not None:
                self.store.update(JOB_SETS, metadata["namespace"], metadata["name"], change)
        return due

    def _reconcile(self, job_set: Manifest) -> float | None:
        children = self._children(job_set)
        _count(job_set, children)
        if is_true(job_set, "Completed") or is_true(job_set, "Failed"):
            self._delete(children.active)
            return self._expire(job_set)
        self._delete(children.previous)
        if children.failed:
            self._apply_failure_policy(job_set, children.failed)
            return None
        wanted = sum(replicated.get("replicas", 1) for replicated in _replicated(job_set))
        if children.successful and len(children.successful) >= wanted:
            self._set(job_set, "Completed", "True", "AllJobsCompleted", "jobset completed successfully")
            job_set["status"]["terminalState"] = "Completed"
            return None
        try:
            self._create_service(job_set)
            self._create_jobs(job_set, children)
        except ApiError as error:
            self._record(job_set, "Warning", "JobCreationFailed", error.message)
            return _RETRY_S
        self._suspend_or_resume(job_set, children.active)
        return None

    def _children(self, job_set: Manifest) -> _Children:
        uid, found = job_set["metadata"]["uid"], _Children()
        restarts = job_set["status"].get("restarts", 0)
        for job in self.store.select(JOBS, job_set["metadata"]["namespace"]):
            if (controller_of(job) or {}).get("uid") != uid:
                continue
            if int(job["metadata"]["labels"][RESTART_KEY]) < restarts:
                found.previous.append(job)
            elif is_true(job, "Failed"):
                found.failed.append(job)
            elif is_true(job, "Complete"):
                found.successful.append(job)
            else:
                found.active.append(job)
        return found

    # Failure and completion.

    def _apply_failure_policy(self, job_set: Manifest, failed: Sequence[Manifest]) -> None:
        """Apply the first matching rule; without one restart and count it; without a policy fail."""
        policy = job_set["spec"].get("failurePolicy")
        first = min(failed, key=lambda job: seconds(_failure(job)["lastTransitionTime"]))
        if policy is None:
            self._fail(job_set, "FailedJobs", "jobset failed due to one or more job failures", first)
            return
        rule, job = _matching(policy, failed) or ({"action": "RestartJobSet"}, first)
        action, status = rule["action"], job_set["status"]
        applying = f"applying {action} failure policy action"
        if action == "FailJobSet":
            self._fail(job_set, f"{action}FailurePolicyAction", applying, job)
            return
        counts = _RESTARTS[action]
        if counts and status.get("restartsCountTowardsMax", 0) >= policy.get("maxRestarts", 0):
            self._fail(
                job_set, "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts", job
            )
            return
        status["restarts"] = status.get("restarts", 0) + 1
        status["restartsCountTowardsMax"] = status.get("restartsCountTowardsMax", 0) + counts
        message = _named(applying, job)
        why = f"FailurePolicy_{rule['name']}" if "name" in rule else "DefaultFailurePolicy"
        self._set(job_set, "Restarting", "True", why, message, "Warning")
        self._record(job_set, "Warning", f"{action}FailurePolicyAction", message)

    def _fail(self, job_set: Manifest, reason: str, message: str, job: Manifest) -> None:
        self._set(job_set, "Failed", "True", reason, _named(message, job), "Warning")
        job_set["status"]["terminalState"] = "Failed"

    def _expire(self, job_set: Manifest) -> float | None:
        """Delete the JobSet after spec.ttlSecondsAfterFinished."""
        ttl = job_set["spec"].get("ttlSecondsAfterFinished")
        if ttl is None:
            return None
        ended = next(kind for kind in ("Completed", "Failed") if is_true(job_set, kind))
        stamp = (find_condition(job_set, ended) or {})["lastTransitionTime"]
        left = seconds(stamp) + float(ttl) * self.ttl_scale - time.time()
        if left > 0:
            return left
        metadata = job_set["metadata"]
        how = Deletion(policy="Foreground", uid=metadata["uid"])
        self.store.delete(JOB_SETS, metadata["namespace"], metadata["name"], how)
        return None

    # Jobs and their Service.

    def _delete(self, jobs: Sequence[Manifest]) -> None:
        for job in jobs:
            if not is_deleting(job):
                metadata = job["metadata"]
                how = Deletion(policy="Foreground", uid=metadata["uid"])
                self.store.delete(JOBS, metadata["namespace"], metadata["name"], how)

    def _create_service(self, job_set: Manifest) -> None:
        """Create the headless Service unless one of its name exists."""
        metadata, network = job_set["metadata"], job_set["spec"].get("network") or {}
        name = network.get("subdomain") or metadata["name"]
        if not network.get("enableDNSHostnames"):
            return
        if self.store.find(SERVICES, metadata["namespace"], name) is not None:
            return
        spec = {
            "clusterIP": "None",
            "selector": {NAME_KEY: metadata["name"]},
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
        }
        head = {"name": name, "ownerReferences": [owner_ref(job_set)]}
        self.store.create(SERVICES, metadata["namespace"], {"metadata": head, "spec": spec})

    def _create_jobs(self, job_set: Manifest, children: _Children) -> None:
        """Create missing Jobs; with BlockingRecreate only once all previous ones are deleted."""
        policy = job_set["spec"].get("failurePolicy") or {}
        if children.previous and policy.get("restartStrategy") == "BlockingRecreate":
            return
        for replicated in _replicated(job_set):
            for index in range(replicated.get("replicas", 1)):
                if child_name(job_set, replicated, index) not in children.names:
                    job = new_child(job_set, replicated, index)
                    self.store.create(JOBS, job_set["metadata"]["namespace"], job)

    def _suspend_or_resume(self, job_set: Manifest, active: Sequence[Manifest]) -> None:
        suspended = bool(job_set["spec"].get("suspend"))
        templates = {one["name"]: one["template"]["spec"]["template"] for one in _replicated(job_set)}
        for job in active:
            if bool(job["spec"].get("suspend")) == suspended:
                continue
            metadata = job["metadata"]
            template = templates[metadata["labels"][REPLICATED_KEY]]

            def change(obj: Manifest, template: Manifest = template) -> None:
                obj["spec"]["suspend"] = suspended
                if not suspended:
                    _merge_template(obj["spec"]["template"], template)

            self.store.update(JOBS, metadata["namespace"], metadata["name"], change)
        if suspended:
            self._set(job_set, "Suspended", "True", "SuspendedJobs", "jobset is suspended")
        elif find_condition(job_set, "Suspended") is not None:
            self._set(job_set, "Suspended", "False", "ResumeJobs", "jobset is resumed")

    # Conditions and events.

    def _set(
        self, job_set: Manifest, kind: str, status: str, reason: str, message: str, event: str = "Normal"
    ) -> None:
        if set_condition(job_set, kind, status, reason, message):
            self._record(job_set, event, reason, message)

    def _record(self, job_set: Manifest, kind: str, reason: str, message: str) -> None:
        record_event(self.store, job_set, kind, reason, message, NAME)


def _replicated(job_set: Manifest) -> Sequence[Manifest]:
    found: Sequence[Manifest] = (job_set.get("spec") or {}).get("replicatedJobs") or ()
    return found


def _failure(job: Manifest) -> Manifest:
    found = find_condition(job, "Failed")
    assert found is not None
    return found


def _named(message: str, job: Manifest) -> str:
    return f"{message} (first failed job: {job['metadata']['name']})"


def _matching(policy: Manifest, failed: Sequence[Manifest]) -> tuple[Manifest, Manifest] | None:
    """The first rule that matches one of the Jobs, and the Job."""
    for rule in policy.get("rules") or ():
        reasons = rule.get("onJobFailureReasons") or ()
        for job in failed:
            if not reasons or _failure(job)["reason"] in reasons:
                return rule, job
    return None


def _merge_template(template: Manifest, wanted: Manifest) -> None:
    """Merge labels, annotations and nodeSelector, which Kueue may have changed while suspended."""
    for group in ("labels", "annotations"):
        more = (wanted.get("metadata") or {}).get(group) or {}
        template["metadata"][group] = {**(template["metadata"].get(group) or {}), **more}
    if selector := wanted["spec"].get("nodeSelector"):
        template["spec"]["nodeSelector"] = {**(template["spec"].get("nodeSelector") or {}), **selector}


def _count(job_set: Manifest, children: _Children) -> None:
    """Set status.replicatedJobsStatus."""
    found = []
    for replicated in _replicated(job_set):
        active, successful, failed = (
            [job for job in group if job["metadata"]["labels"][REPLICATED_KEY] == replicated["name"]]
            for group in (children.active, children.successful, children.failed)
        )
        found.append(
            {
                "name": replicated["name"],
                "ready": sum(map(_is_ready, active)),
                "succeeded": len(successful),
                "failed": len(failed),
                "active": sum(bool(job["status"].get("active")) for job in active),
                "suspended": sum(bool(job["spec"].get("suspend")) for job in active),
            }
        )
    if found:
        job_set["status"]["replicatedJobsStatus"] = found


def _is_ready(job: Manifest) -> bool:
    done = job["status"].get("ready", 0) + job["status"].get("succeeded", 0)
    return bool(done >= job["spec"]["parallelism"])
