"""Volcano's job controller, reduced: pods, phases and the policies that dist-train renders.

By pkg/controllers/job of the project, since https://volcano.sh/en/docs/vcjob/ is brief. Supported: the
actions RestartJob, TerminateJob, AbortJob and CompleteJob, the events PodFailed and PodEvicted, the plugins
svc and env. Ignored: policies of tasks, timeouts, dependsOn, partitions, minSuccess, scaling, volumes of
jobs, TTL and ResumeJob. volcano_scheduler.py binds the pods.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cluster.api.errors import ApiError
from cluster.api.events import record_event
from cluster.api.store import Store
from cluster.objects import PODS, Manifest, controller_of, is_deleting, now
from cluster.operators.jobset_children import owner_ref
from cluster.operators.volcano_pods import (
    POD_GROUPS,
    QUEUES,
    VC_JOBS,
    VERSION,
    add_network,
    group_name,
    new_pod,
    pod_name,
    remove_network,
)

NAME = "vc-controller-manager"
_RETRY_S = 1.0
_KEPT = ("Succeeded", "Failed")
_ENDED = ("Completed", "Failed", "Terminated", "Aborted")
# Action -> the phase while its pods terminate, and the phase after it.
_ENDINGS = {
    "TerminateJob": ("Terminating", "Terminated"),
    "AbortJob": ("Aborting", "Aborted"),
    "CompleteJob": ("Completing", "Completed"),
}
_NUMBERS = ("pending", "running", "succeeded", "failed", "terminating")
_OUT_OF_SYNC = "volcano.sh/controller-out-of-sync"
_Update = Callable[[Manifest], None]


@dataclass(frozen=True)
class _Event:
    """Event of a pod that was created for a version of the job."""

    name: str
    version: int
    exit_code: int = 0


@dataclass
class VolcanoController:
    """Reconcile pods, PodGroup and status of every vcjob."""

    store: Store
    _seen: dict[str, dict[str, Manifest]] = field(default_factory=dict)
    _fingerprints: dict[str, object] = field(default_factory=dict)
    _commands: dict[str, str] = field(default_factory=dict)

    def command(self, name: str, action: str) -> None:
        """Queue an action of a user; `vcctl job suspend` is AbortJob."""
        with self.store.lock:
            self._commands[name] = action
        self.store.poke()

    def sync(self) -> float | None:
        """Reconcile all vcjobs once."""
        with self.store.lock:
            due = [self._sync_job(job) for job in self.store.select(VC_JOBS) if not is_deleting(job)]
        return min((wait for wait in due if wait is not None), default=None)

    def _sync_job(self, job: Manifest) -> float | None:
        pods = self._pods(job)
        actions = [self._action(job, event) for event in self._events(job, pods)]
        if command := self._commands.pop(job["metadata"]["name"], ""):
            actions.append(command)
        actions = [action for action in actions if action]
        fingerprint = self._fingerprint(job, pods)
        if not actions and fingerprint == self._fingerprints.get(job["metadata"]["uid"]):
            return None  # nothing has changed
        job.setdefault("status", {})
        try:
            # A second action would apply to pods of an earlier version.
            self._execute(job, actions[0] if actions else "")
        except ApiError as error:
            record_event(
                self.store, job, "Warning", "FailedCreatePod", f"Error creating pods: {error.message}", NAME
            )
            return _RETRY_S
        self._fingerprints[job["metadata"]["uid"]] = fingerprint
        return None

    def _pods(self, job: Manifest) -> list[Manifest]:
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        return self.store.select(PODS, namespace, lambda pod: (controller_of(pod) or {}).get("uid") == uid)

    def _fingerprint(self, job: Manifest, pods: Iterable[Manifest]) -> object:
        group = self._group(job)
        state = [(pod["metadata"]["uid"], pod["status"]["phase"], is_deleting(pod)) for pod in pods]
        return state, _phase(job), (group or {}).get("status", {}).get("phase")

    def _group(self, job: Manifest) -> Manifest | None:
        return self.store.find(POD_GROUPS, job["metadata"]["namespace"], group_name(job))

    # Events and actions.

    def _events(self, job: Manifest, pods: Iterable[Manifest]) -> list[_Event]:
        known = self._seen.setdefault(job["metadata"]["uid"], {})
        living = {pod["metadata"]["uid"]: pod for pod in pods}
        found = []
        for uid, pod in living.items():
            before = known.get(uid, pod)["status"]["phase"]
            if pod["status"]["phase"] == "Failed" and before != "Failed":
                found.append(_Event("PodFailed", _version(pod), _exit_code(pod)))
        for uid, pod in known.items():
            if uid not in living and _OUT_OF_SYNC not in pod["metadata"]["annotations"]:
                found.append(_Event("PodEvicted", _version(pod)))
        self._seen[job["metadata"]["uid"]] = living
        return found

    def _action(self, job: Manifest, event: _Event) -> str:
        """Action of the first matching policy; events of pods of an earlier version are ignored."""
        if event.version < (job.get("status") or {}).get("version", 0):
            return ""
        for policy in job["spec"].get("policies") or ():
            events = [*(policy.get("events") or ()), *([policy["event"]] if "event" in policy else [])]
            named = event.name in events or "*" in events
            if named or ("exitCode" in policy and policy["exitCode"] == event.exit_code):
                return str(policy["action"])
        return ""

    # The state machine.

    def _execute(self, job: Manifest, action: str) -> None:
        phase = _phase(job)
        if phase in _ENDED:
            self._kill(job, _KEPT)
        elif ending := next((last for first, last in _ENDINGS.values() if first == phase), ""):
            self._kill(job, _KEPT, lambda status: _end_when_empty(status, ending))
        elif phase == "Restarting":
            change = _restarted(job)
            self._kill(job, (), change) if action else self._run(job, change)
        elif action == "RestartJob":
            self._kill(job, (), _restart)
        elif action in _ENDINGS:
            self._kill(job, _KEPT, lambda status: _set_phase(status, _ENDINGS[action][0]))
        else:
            self._run(job, _progress(job))

    def _kill(self, job: Manifest, kept: Iterable[str], update: _Update = lambda status: None) -> None:
        """Delete pods, except in a kept phase, and the svc objects; the last restart keeps ended pods."""
        status = job["status"]
        last = status.get("retryCount", 0) >= job["spec"]["maxRetry"] - 1
        kept = _KEPT if last else kept
        status["version"] = status.get("version", 0) + 1
        status |= dict.fromkeys(_NUMBERS, 0)
        for pod in self._pods(job):
            if not is_deleting(pod) and pod["status"]["phase"] in kept:
                continue
            status["terminating"] += 1
            if not is_deleting(pod):
                self._delete(pod)
        self._write(job, update)
        remove_network(self.store, job)
        if self._group(job) is not None:
            self.store.delete(POD_GROUPS, job["metadata"]["namespace"], group_name(job))

    def _delete(self, pod: Manifest) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

        def mark(obj: Manifest) -> None:
            obj["metadata"]["annotations"][_OUT_OF_SYNC] = "true"

        self._seen[(controller_of(pod) or {})["uid"]][pod["metadata"]["uid"]] = self.store.update(
            PODS, namespace, name, mark
        )
        self.store.delete(PODS, namespace, name)

    def _run(self, job: Manifest, update: _Update) -> None:
        """Create missing pods, once the PodGroup is enqueued."""
        namespace = job["metadata"]["namespace"]
        if self.store.find(QUEUES, "", job["spec"]["queue"]) is None:
            return  # Volcano only logs this, and gives up after some attempts
        if _phase(job) in ("", "Pending"):
            job["status"].setdefault("state", {"phase": "Pending"})
            job["status"]["minAvailable"] = job["spec"]["minAvailable"]
            add_network(self.store, job)
        group = self._group(job) or self._make_group(job)
        if (group.get("status") or {}).get("phase", "Pending") == "Pending":
            self._write(job, update)
            return
        numbers = dict.fromkeys(_NUMBERS, 0)
        for task in job["spec"]["tasks"]:
            for index in range(task["replicas"]):
                pod = self.store.find(PODS, namespace, pod_name(job, task, index))
                if pod is None:
                    pod = self.store.create(PODS, namespace, new_pod(job, task, index))
                numbers["terminating" if is_deleting(pod) else pod["status"]["phase"].lower()] += 1
        job["status"] |= numbers
        self._write(job, update)

    def _make_group(self, job: Manifest) -> Manifest:
        spec = job["spec"]
        head = {
            "name": group_name(job),
            "labels": job["metadata"].get("labels") or {},
            "ownerReferences": [owner_ref(job)],
        }
        members = {task["name"]: task.get("minAvailable", task["replicas"]) for task in spec["tasks"]}
        wanted = {"minMember": spec["minAvailable"], "minTaskMember": members, "queue": spec["queue"]}
        return self.store.create(POD_GROUPS, job["metadata"]["namespace"], {"metadata": head, "spec": wanted})

    def _write(self, job: Manifest, update: _Update) -> None:
        before = _phase(job)
        update(job["status"])
        if _phase(job) != before:
            job["status"]["state"]["lastTransitionTime"] = now()
        status = copy.deepcopy(job["status"])

        def change(obj: Manifest) -> None:
            obj["status"] = status

        self.store.update(VC_JOBS, job["metadata"]["namespace"], job["metadata"]["name"], change)


def _phase(job: Manifest) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase", ""))


def _version(pod: Manifest) -> int:
    return int(pod["metadata"]["annotations"][VERSION])


def _exit_code(pod: Manifest) -> int:
    """Exit code of the first container."""
    statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
    return int(statuses[0]["state"].get("terminated", {}).get("exitCode", 0))


def _set_phase(status: Manifest, phase: str) -> None:
    status["state"] = {**status.get("state", {}), "phase": phase}


def _end_when_empty(status: Manifest, phase: str) -> None:
    if not (status["terminating"] or status["pending"] or status["running"]):
        _set_phase(status, phase)


def _restart(status: Manifest) -> None:
    status["retryCount"] = status.get("retryCount", 0) + 1
    _set_phase(status, "Restarting")


def _restarted(job: Manifest) -> _Update:
    """Update of a restarting job: Failed after maxRetry, else Pending once enough pods are deleted."""
    spec = job["spec"]

    def change(status: Manifest) -> None:
        if status["retryCount"] >= spec["maxRetry"]:
            _set_phase(status, "Failed")
        elif sum(task["replicas"] for task in spec["tasks"]) - status["terminating"] >= spec["minAvailable"]:
            _set_phase(status, "Pending")

    return change


def _progress(job: Manifest) -> _Update:
    """Update of a pending or running job."""
    least, total = job["spec"]["minAvailable"], sum(task["replicas"] for task in job["spec"]["tasks"])

    def change(status: Manifest) -> None:
        numbers = {name: status.get(name, 0) for name in _NUMBERS}
        ended = numbers["succeeded"] + numbers["failed"]
        if _phase({"status": status}) == "Pending":
            if least <= numbers["running"] + ended:
                _set_phase(status, "Running")
        elif ended == total:
            _set_phase(status, "Completed" if numbers["succeeded"] >= least else "Failed")
        elif numbers["pending"] > total - least:
            _set_phase(status, "Pending")

    return change
