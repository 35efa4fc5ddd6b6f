"""ManualKubelet: tests set the status of pods, as a kubelet would report it.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
A pod that is being deleted stays until the test ends it, as on a real node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.api.errors import bad_request
from cluster.api.store import Deletion, Store
from cluster.objects import PODS, Manifest, is_deleting, now, set_condition
from cluster.pod import Pod


@dataclass
class ManualKubelet:
    """Status and output of pods, set by tests; an api.log_streams.LogSource.

    Attributes:
        folder: logs of the pods, a folder per uid.
    """

    store: Store
    folder: Path

    def run(self, *pods: Pod) -> None:
        """Set the pods Running."""
        for pod in pods:
            self._change(pod, _running)

    def hold(self, pod: Pod, reason: str, message: str = "") -> None:
        """Set the container waiting: ImagePullBackOff, CreateContainerConfigError, ..."""

        def change(obj: Manifest) -> None:
            obj["status"]["containerStatuses"] = [
                _status(obj, {"waiting": {"reason": reason, "message": message}})
            ]

        self._change(pod, change)

    def end(self, pod: Pod, code: int = 0, message: str = "", reason: str = "") -> None:
        """Set the container terminated; a pod with a deletionTimestamp is deleted.

        Args:
            message: the termination message.
            reason: OOMKilled, ...; by default Completed or Error.
        """

        def change(obj: Manifest) -> None:
            ended: Manifest = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
            ended |= {"finishedAt": now(), **({"message": message} if message else {})}
            obj["status"]["containerStatuses"] = [_status(obj, {"terminated": ended})]
            obj["status"]["phase"] = "Failed" if code else "Succeeded"
            for kind in ("Ready", "ContainersReady"):
                set_condition(obj, kind, "False", "PodFailed" if code else "PodCompleted")

        if is_deleting(self._change(pod, change)):
            self.store.delete(PODS, pod.namespace, pod.name, Deletion(grace_s=0, uid=pod.uid))

    def evict(self, pod: Pod, why: str, is_disruption: bool = True) -> None:
        """Set the pod evicted by its node, without grace period; the object stays.

        Args:
            is_disruption: False if the pod itself exceeded its disk limit.
        """

        def change(obj: Manifest) -> None:
            ended: Manifest = {"exitCode": 137, "reason": "Error", "finishedAt": now()}
            obj["status"]["containerStatuses"] = [_status(obj, {"terminated": ended})]
            obj["status"] |= {"phase": "Failed", "reason": "Evicted", "message": why}
            if is_disruption:
                set_condition(obj, "DisruptionTarget", "True", "TerminationByKubelet", why)

        self._change(pod, change)

    def write(self, pod: Pod, *lines: str) -> None:
        """Append lines to the container's log."""
        path = self.log(pod.manifest, pod.manifest["spec"]["containers"][0]["name"], create=True)
        with path.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def _change(self, pod: Pod, change: Callable[[Manifest], None]) -> Manifest:
        def change_same_pod(obj: Manifest) -> None:
            assert obj["metadata"]["uid"] == pod.uid, (
                f"{pod.name} has been replaced by another pod of that name"
            )
            change(obj)

        return self.store.update(PODS, pod.namespace, pod.name, change_same_pod)

    # api.log_streams.LogSource

    def log(self, pod: Manifest, container: str, create: bool = False) -> Path:
        """Log file of a container; raises ApiError before it has started."""
        path: Path = self.folder / pod["metadata"]["uid"] / f"{container}.log"
        if create or _has_started(pod):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        if not path.exists():
            name = pod["metadata"]["name"]
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start')
        return path

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Whether the container is running; False for a deleted pod."""
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


def _has_started(pod: Manifest) -> bool:
    return "running" in _state(pod) or "terminated" in _state(pod)
