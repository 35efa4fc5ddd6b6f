"""Volcano's scheduler and webhook, reduced: gang scheduling, all pods of a PodGroup or none.

Considers what controllers/scheduler.py considers; the only quota of a queue is `full`.
Not emulated: priorities, preemption, proportion, topology, binding that fails halfway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.api.errors import ApiError
from cluster.api.events import record_event
from cluster.api.store import Store
from cluster.controllers.scheduler import Scheduler
from cluster.objects import PODS, Manifest, Resource, is_deleting, set_condition
from cluster.operators.volcano_pods import GROUP, POD_GROUPS, QUEUES, VC_JOBS

NAME = "volcano"
_PENDING, _INQUEUE, _RUNNING = "Pending", "Inqueue", "Running"


@dataclass
class VolcanoScheduler(Scheduler):
    """Set the phases of PodGroups and bind their pods.

    Attributes:
        full: why no PodGroup is enqueued; empty: there is capacity.
    """

    name: str = NAME
    full: str = ""

    def sync(self) -> None:
        """Schedule all PodGroups once."""
        with self.store.lock:
            for group in self.store.select(POD_GROUPS):
                if not is_deleting(group):
                    self._sync_group(group)

    def _sync_group(self, group: Manifest) -> None:
        phase = (group.get("status") or {}).get("phase", "")
        pods = self._members(group)
        if phase in ("", _PENDING):
            queue = self.store.find(QUEUES, "", group["spec"]["queue"])
            fits = queue is not None and not self.full
            self._set_phase(group, _INQUEUE if fits else _PENDING)
            if self.full:
                record_event(self.store, group, "Normal", "Unschedulable", self.full, NAME)
            return
        waiting = [pod for pod in pods if "nodeName" not in pod["spec"] and not is_deleting(pod)]
        if not waiting:
            if pods and phase == _INQUEUE:
                self._set_phase(group, _RUNNING)
            return
        why = self._why_not_all(waiting)
        if len(pods) < group["spec"]["minMember"]:
            return
        if not why:
            for pod in waiting:
                self._bind(pod)
            return
        message = f"{len(waiting)}/{len(pods)} tasks in gang unschedulable: pod group is not ready, "
        message += f"{len(waiting)} Pending, {group['spec']['minMember']} minAvailable: {why}"
        self._mark_gang_unschedulable(group, waiting, message, why)

    def _members(self, group: Manifest) -> list[Manifest]:
        name, namespace = group["metadata"]["name"], group["metadata"]["namespace"]
        return self.store.select(
            PODS, namespace, lambda pod: (pod["metadata"].get("annotations") or {}).get(GROUP) == name
        )

    def _why_not_all(self, pods: Sequence[Manifest]) -> str:
        """Why the pods cannot all be bound at once; empty when they can."""
        taken: list[Manifest] = []
        for pod in pods:
            node, why = self.choose(pod, taken)
            if why:
                return why
            taken.append({**pod, "spec": {**pod["spec"], "nodeName": node}})
        return ""

    def _mark_gang_unschedulable(
        self, group: Manifest, pods: Sequence[Manifest], message: str, why: str
    ) -> None:
        def note(obj: Manifest) -> None:
            set_condition(obj, "Unschedulable", "True", "NotEnoughResources", message)

        self._update(group, note)
        for pod in pods:
            self._mark_unschedulable(pod, why)

    def _set_phase(self, group: Manifest, phase: str) -> None:
        def change(obj: Manifest) -> None:
            obj.setdefault("status", {})["phase"] = phase
            if phase == _RUNNING:
                set_condition(obj, "Unschedulable", "False")
                set_condition(obj, "Scheduled", "True", "tasks in gang are ready to be scheduled")

        self._update(group, change)

    def _update(self, group: Manifest, change: Callable[[Manifest], None]) -> None:
        metadata = group["metadata"]
        self.store.update(POD_GROUPS, metadata["namespace"], metadata["name"], change)


def make_queue(store: Store, name: str, state: str = "Open") -> None:
    """Create a queue; Volcano itself creates `default` and `root`."""
    store.create(QUEUES, "", {"metadata": {"name": name}, "spec": {"weight": 1}})

    def opened(obj: Manifest) -> None:
        obj["status"] = {"state": state}

    store.update(QUEUES, "", name, opened)


def admit_vcjob(store: Store) -> Callable[[Resource, Manifest, Callable[[str], None]], None]:
    """Webhook for Store.admission: set defaults; refuse queues that accept no job (400)."""

    def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource != VC_JOBS:
            return
        spec = obj["spec"]
        spec.setdefault("queue", "default")
        spec.setdefault("schedulerName", NAME)
        spec["maxRetry"] = spec.get("maxRetry") or 3
        for task in spec["tasks"]:
            task.setdefault("minAvailable", task["replicas"])
        spec.setdefault("minAvailable", sum(task["minAvailable"] for task in spec["tasks"]))
        if errors := _errors(store, obj, spec):
            webhook = "validatejob.volcano.sh"
            message = f'admission webhook "{webhook}" denied the request: {"; ".join(errors)};'
            raise ApiError(400, "", message)

    return admit


def _errors(store: Store, obj: Manifest, spec: Manifest) -> list[str]:
    errors = []
    for index, task in enumerate(spec["tasks"]):
        if len(name := f"{obj['metadata']['name']}-{task['name']}-{index}") > 63:
            errors.append(f"create pod with name {name} validate failed: must be no more than 63 characters")
    queue = store.find(QUEUES, "", spec["queue"])
    if queue is None:
        errors.append(f'unable to find job queue: queue.scheduling.volcano.sh "{spec["queue"]}" not found')
    elif queue["metadata"]["name"] == "root":
        errors.append("can not submit job to root queue")
    elif (state := queue["status"]["state"]) != "Open":
        errors.append(
            f"can only submit job to queue with state `Open`, queue `{spec['queue']}` status is `{state}`"
        )
    return errors
