"""A kubelet by hand, for control planes without nodes: pods fare as the test says, in a kubelet's words.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
A pod that is being removed stays until the test ends it, as on a real node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k8s_objects import PODS, Manifest, is_deleting, now, set_condition
from k8s_pods import Pod
from k8s_status import bad_request
from k8s_store import Deletion, Store


@dataclass
class HandKubelet:
    """What a node tells of its pods, and their output; a k8s_requests.Logs.

    Attributes:
        folder: output of the pods, a folder for each uid.
    """

    store: Store
    folder: Path

    def run(self, *pods: Pod) -> None:
        """Their containers have started."""
        for pod in pods:
            self._change(pod, _running)

    def hold(self, pod: Pod, reason: str, message: str = "") -> None:
        """Its container waits: ImagePullBackOff, CreateContainerConfigError, ..."""

        def change(obj: Manifest) -> None:
            obj["status"]["containerStatuses"] = [
                _status(obj, {"waiting": {"reason": reason, "message": message}})
            ]

        self._change(pod, change)

    def end(self, pod: Pod, code: int = 0, told: str = "", reason: str = "") -> None:
        """Its container has ended; an object that was to be removed goes.

        Args:
            told: the termination message.
            reason: OOMKilled, ...; of itself Completed or Error.
        """

        def change(obj: Manifest) -> None:
            ended: Manifest = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
            ended |= {"finishedAt": now(), **({"message": told} if told else {})}
            obj["status"]["containerStatuses"] = [_status(obj, {"terminated": ended})]
            obj["status"]["phase"] = "Failed" if code else "Succeeded"
            for kind in ("Ready", "ContainersReady"):
                set_condition(obj, kind, "False", "PodFailed" if code else "PodCompleted")

        if is_deleting(self._change(pod, change)):
            self.store.delete(PODS, pod.namespace, pod.name, Deletion(grace_s=0, uid=pod.uid))

    def evict(self, pod: Pod, why: str, is_disruption: bool = True) -> None:
        """Killed by its node, without a grace; the object stays.

        Args:
            is_disruption: False where the pod itself has used more disk than its limit.
        """

        def change(obj: Manifest) -> None:
            ended: Manifest = {"exitCode": 137, "reason": "Error", "finishedAt": now()}
            obj["status"]["containerStatuses"] = [_status(obj, {"terminated": ended})]
            obj["status"] |= {"phase": "Failed", "reason": "Evicted", "message": why}
            if is_disruption:
                set_condition(obj, "DisruptionTarget", "True", "TerminationByKubelet", why)

        self._change(pod, change)

    def say(self, pod: Pod, *lines: str) -> None:
        """Its container writes."""
        path = self.log(pod.manifest, pod.manifest["spec"]["containers"][0]["name"], begin=True)
        with path.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def _change(self, pod: Pod, change: Callable[[Manifest], None]) -> Manifest:
        def of_this_one(obj: Manifest) -> None:
            assert obj["metadata"]["uid"] == pod.uid, f"another pod of the name {pod.name} is there by now"
            change(obj)

        return self.store.update(PODS, pod.namespace, pod.name, of_this_one)

    # k8s_requests.Logs

    def log(self, pod: Manifest, container: str, begin: bool = False) -> Path:
        """The container's output; a container that has not begun has none."""
        path: Path = self.folder / pod["metadata"]["uid"] / f"{container}.log"
        if begin or _has_begun(pod):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        if not path.exists():
            name = pod["metadata"]["name"]
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start')
        return path

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Whether it runs; a pod that is gone does not."""
        found = self.store.find(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
        return found is not None and "running" in _state(found)


def _running(obj: Manifest) -> None:
    obj["status"] |= {"phase": "Running", "startTime": now()}
    obj["status"]["containerStatuses"] = [_status(obj, {"running": {"startedAt": now()}})]
    for kind in ("Initialized", "ContainersReady", "Ready"):
        set_condition(obj, kind, "True")


def _status(obj: Manifest, state: Manifest) -> Manifest:
    container = obj["spec"]["containers"][0]
    return {
        "name": container["name"],
        "image": container["image"],
        "restartCount": 0,
        "ready": "running" in state,
        "state": state,
        "lastState": {},
    }


def _state(pod: Manifest) -> Manifest:
    statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
    state: Manifest = statuses[0]["state"]
    return state


def _has_begun(pod: Manifest) -> bool:
    return "running" in _state(pod) or "terminated" in _state(pod)
