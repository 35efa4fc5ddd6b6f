"""One pod on its node: sandbox, containers, termination, status.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
Not emulated: restarts (as by restartPolicy Never), sidecars, probes, hooks; init containers run in order.
"""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.nodes.container_spec import CannotStart, PodContext, process_spec, write_pod_files
from cluster.nodes.container_state import ContainerState
from cluster.nodes.network import Endpoint, Network
from cluster.nodes.sandbox import Container, Sandbox
from cluster.objects import Manifest, is_deleting, now, set_condition

# Grace period of a pod whose object was deleted from the API server.
_DELETED_GRACE_S = 2.0
_RETRY_S = 0.5


@dataclass
class PodWorker:
    """The kubelet's state of one pod.

    Attributes:
        pod: the manifest as last read.
        bad_image: why the image cannot be pulled; empty when it can.
        why_failed: status.reason and status.message of an eviction.
        events: type, reason and message, not yet recorded.
    """

    site: PodContext
    network: Network
    pod: Manifest
    bad_image: str = ""
    why_failed: tuple[str, str] = ("", "")
    sandbox: Sandbox | None = None
    containers: dict[str, ContainerState] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    _start_time: str = field(default_factory=now)
    _kill_at: float | None = None
    _retry_at: float = 0.0

    def __post_init__(self) -> None:
        for container in self._specs():
            self.containers[container["name"]] = ContainerState(container)

    @property
    def folder(self) -> Path:
        return self.site.folder

    @property
    def has_ended(self) -> bool:
        """Whether no container is running or will start."""
        if self._kill_at is not None:
            return not any(state.is_running for state in self.containers.values())
        return all(state.has_ended for state in self._main()) or self._init_failed()

    @property
    def endpoint(self) -> Endpoint | None:
        """Its name and address in the network, until it ends."""
        if self.sandbox is None or self.has_ended:
            return None
        return Endpoint(self.pod, self.sandbox.address)

    def step(self, pod: Manifest | None) -> None:
        """Do the next step towards the desired state.

        Args:
            pod: the current manifest; None when the object is deleted.
        """
        for state in self.containers.values():
            state.poll()
        if pod is not None:
            self.pod = pod
        if pod is None:
            self._end(_DELETED_GRACE_S)
        elif is_deleting(pod):
            self._end(float(pod["metadata"]["deletionGracePeriodSeconds"]))
        elif self._kill_at is None and not self.has_ended:
            self._start_next()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
        if self.has_ended and self.sandbox is not None:
            self.sandbox.stop()
            self.sandbox = None

    def stop(self) -> None:
        """Kill all containers now, and wait."""
        for state in self.containers.values():
            if state.container is not None:
                state.container.stop()
                state.poll()
        if self.sandbox is not None:
            self.sandbox.stop()
            self.sandbox = None

    def end_now(self, reason: str, message: str) -> None:
        """Evict by the node, without grace period."""
        self.why_failed = (reason, message)
        self._end(0.0)

    # Starting.

    def _specs(self) -> list[Manifest]:
        return [*(self.pod["spec"].get("initContainers") or []), *self.pod["spec"]["containers"]]

    def _main(self) -> list[ContainerState]:
        return [self.containers[container["name"]] for container in self.pod["spec"]["containers"]]

    def _init(self) -> list[ContainerState]:
        names = [container["name"] for container in self.pod["spec"].get("initContainers") or []]
        return [self.containers[name] for name in names]

    def _init_failed(self) -> bool:
        return any(state.has_ended and state.exit_code != 0 for state in self._init())

    def _start_next(self) -> None:
        if time.monotonic() < self._retry_at:
            return
        if self.bad_image:
            self._wait_for_image()
            return
        if self.sandbox is None:
            hostname = self.pod["spec"].get("hostname") or self.pod["metadata"]["name"]
            self.sandbox = Sandbox(self.network, hostname)
            write_pod_files(self.site, self.pod)
            # Containers start with the next step: by then the hosts files are written.
            return
        # For fieldRef status.podIP.
        self.pod["status"] |= {"podIP": self.sandbox.address}
        unfinished = next((state for state in self._init() if not state.has_ended), None)
        for state in [unfinished] if unfinished else self._main():
            if state.container is None and not state.has_ended:
                self._start(state)

    def _start(self, state: ContainerState) -> None:
        assert self.sandbox is not None
        try:
            spec = process_spec(self.site, self.pod, state.spec)
        except CannotStart as error:
            reason = "FailedMount" if error.reason == "ContainerCreating" else "Failed"
            if state.wait(error.reason, error.message):
                self._add_event("Warning", reason, error.message)
            self._retry_at = time.monotonic() + _RETRY_S
            return
        state.start(Container(self.sandbox, spec, self.folder / f"{state.name}.log"))
        self._add_event(
            "Normal", "Pulled", f'Container image "{state.spec["image"]}" already present on machine'
        )
        self._add_event("Normal", "Created", f"Created container: {state.name}")
        self._add_event("Normal", "Started", f"Started container {state.name}")

    def _wait_for_image(self) -> None:
        for state in self._main():
            image = state.spec["image"]
            text = f'Failed to pull image "{image}": {self.bad_image}'
            if state.waiting[0] not in ("ErrImagePull", "ImagePullBackOff"):
                state.wait("ErrImagePull", text)
                self._add_event("Warning", "Failed", text)
            else:
                back = f'Back-off pulling image "{image}"'
                if state.wait("ImagePullBackOff", f"{back}: ErrImagePull: {text}"):
                    self._add_event("Normal", "BackOff", back)
        self._retry_at = time.monotonic() + _RETRY_S

    # Termination.

    def _end(self, grace_s: float) -> None:
        """Send SIGTERM once; a shorter grace period moves the SIGKILL forward."""
        deadline = time.monotonic() + grace_s
        if self._kill_at is None:
            for state in self.containers.values():
                if state.is_running:
                    self._add_event("Normal", "Killing", f"Stopping container {state.name}")
            self._signal(signal.SIGTERM)
            self._kill_at = deadline
        elif self._kill_at > deadline:
            self._kill_at = deadline

    def _signal(self, number: int) -> None:
        for state in self.containers.values():
            if state.is_running and state.container is not None:
                state.container.send(number)

    def _add_event(self, kind: str, reason: str, message: str) -> None:
        self.events.append((kind, reason, message))

    # Status.

    def status(self, old: Manifest) -> Manifest:
        """Status to report to the API server."""
        pod = {"status": copy.deepcopy(old)}
        status = pod["status"]
        status |= {"phase": self._phase(), "startTime": self._start_time, "hostIP": "10.0.0.1"}
        if self.sandbox is not None:
            address = self.sandbox.address
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        reason, message = self.why_failed
        status |= {"reason": reason, "message": message} if reason else {}
        status["containerStatuses"] = [state.status for state in self._main()]
        if self._init():
            status["initContainerStatuses"] = [state.status for state in self._init()]
        running = all(state.is_running and state.is_started for state in self._main())
        ready = "True" if running and self._kill_at is None else "False"
        set_condition(pod, "PodReadyToStartContainers", "True" if self.sandbox is not None else "False")
        set_condition(
            pod, "Initialized", _condition_status(all(state.exit_code == 0 for state in self._init()))
        )
        set_condition(pod, "Ready", ready, *_not_ready_reason(status["phase"], ready))
        set_condition(pod, "ContainersReady", ready, *_not_ready_reason(status["phase"], ready))
        return status

    def _phase(self) -> str:
        """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase"""
        if self.has_ended:
            ended_well = all(state.exit_code == 0 for state in self._main())
            return "Succeeded" if ended_well and not self.why_failed[0] else "Failed"
        started = any(state.container is not None and state.is_started for state in self._main())
        return "Running" if started else "Pending"


def _condition_status(value: bool) -> str:
    return "True" if value else "False"


def _not_ready_reason(phase: str, ready: str) -> Iterable[str]:
    if ready == "True":
        return ()
    return {"Succeeded": ("PodCompleted",), "Failed": ("PodFailed",)}.get(phase, ("ContainersNotReady",))
