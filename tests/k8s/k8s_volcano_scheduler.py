"""A stand-in for Volcano's scheduler and webhook: a gang gets all its machines at once or none.

It looks at what k8s_scheduler.py looks at; queues have no quota of their own but what the test says.
Not emulated: priorities, preemption, proportion, topology, binding that fails halfway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k8s_events import tell
from k8s_objects import PODS, Manifest, Resource, is_deleting, set_condition
from k8s_scheduler import Scheduler
from k8s_status import ApiError
from k8s_store import Store
from k8s_volcano_pods import GROUP, POD_GROUPS, QUEUES, VC_JOBS

NAME = "volcano"
_PENDING, _INQUEUE, _RUNNING = "Pending", "Inqueue", "Running"


@dataclass
class VolcanoScheduler(Scheduler):
    """Phases of PodGroups, and machines for their pods.

    Attributes:
        full: why no PodGroup gets into its queue now; empty: there is room.
    """

    name: str = NAME
    full: str = ""

    def sync(self) -> None:
        """All PodGroups once."""
        with self.store.lock:
            for group in self.store.select(POD_GROUPS):
                if not is_deleting(group):
                    self._sync_group(group)

    def _sync_group(self, group: Manifest) -> None:
        phase = (group.get("status") or {}).get("phase", "")
        pods = self._members(group)
        if phase in ("", _PENDING):
            queue = self.store.find(QUEUES, "", group["spec"]["queue"])
            room = queue is not None and not self.full
            self._go(group, _INQUEUE if room else _PENDING)
            if self.full:
                tell(self.store, group, "Normal", "Unschedulable", self.full, NAME)
            return
        waiting = [pod for pod in pods if "nodeName" not in pod["spec"] and not is_deleting(pod)]
        if not waiting:
            if pods and phase == _INQUEUE:
                self._go(group, _RUNNING)
            return
        why = self._objection_to_all(waiting)
        if len(pods) < group["spec"]["minMember"]:
            return
        if not why:
            for pod in waiting:
                self._place(pod)
            return
        said = f"{len(waiting)}/{len(pods)} tasks in gang unschedulable: pod group is not ready, "
        said += f"{len(waiting)} Pending, {group['spec']['minMember']} minAvailable: {why}"
        self._refuse_gang(group, waiting, said, why)

    def _members(self, group: Manifest) -> list[Manifest]:
        name, namespace = group["metadata"]["name"], group["metadata"]["namespace"]
        return self.store.select(
            PODS, namespace, lambda pod: (pod["metadata"].get("annotations") or {}).get(GROUP) == name
        )

    def _objection_to_all(self, pods: Sequence[Manifest]) -> str:
        """Why not all of them have a machine at once."""
        taken: list[Manifest] = []
        for pod in pods:
            node, why = self.choose(pod, taken)
            if why:
                return why
            taken.append({**pod, "spec": {**pod["spec"], "nodeName": node}})
        return ""

    def _refuse_gang(self, group: Manifest, pods: Sequence[Manifest], said: str, why: str) -> None:
        def note(obj: Manifest) -> None:
            set_condition(obj, "Unschedulable", "True", "NotEnoughResources", said)

        self._update(group, note)
        for pod in pods:
            self._refuse(pod, why)

    def _go(self, group: Manifest, phase: str) -> None:
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
    """Volcano itself makes `default` and `root`."""
    store.create(QUEUES, "", {"metadata": {"name": name}, "spec": {"weight": 1}})

    def opened(obj: Manifest) -> None:
        obj["status"] = {"state": state}

    store.update(QUEUES, "", name, opened)


def admit_vcjob(store: Store) -> Callable[[Resource, Manifest, Callable[[str], None]], None]:
    """For Store.admission: what the webhooks fill in, and queues that take no job (400)."""

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
        if said := _objections(store, obj, spec):
            webhook = "validatejob.volcano.sh"
            words = f'admission webhook "{webhook}" denied the request: {"; ".join(said)};'
            raise ApiError(400, "", words)

    return admit


def _objections(store: Store, obj: Manifest, spec: Manifest) -> list[str]:
    said = []
    for index, task in enumerate(spec["tasks"]):
        if len(name := f"{obj['metadata']['name']}-{task['name']}-{index}") > 63:
            said.append(f"create pod with name {name} validate failed: must be no more than 63 characters")
    queue = store.find(QUEUES, "", spec["queue"])
    if queue is None:
        said.append(f'unable to find job queue: queue.scheduling.volcano.sh "{spec["queue"]}" not found')
    elif queue["metadata"]["name"] == "root":
        said.append("can not submit job to root queue")
    elif (state := queue["status"]["state"]) != "Open":
        said.append(
            f"can only submit job to queue with state `Open`, queue `{spec['queue']}` status is `{state}`"
        )
    return said
