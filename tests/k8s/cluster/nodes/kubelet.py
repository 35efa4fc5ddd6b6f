"""Kubelets of all nodes, in one thread: pods are real processes on this machine.

A container's command is process 1 of its own namespaces (sandbox.py, container_init.py), with a root file
system that has only the programs of this machine; each pod has an address on one bridge (network.py).
Needs root. Not emulated: resource limits, image pulls, node pressure, device plugins.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.api.errors import ApiError, bad_request
from cluster.api.events import record_event
from cluster.api.store import Deletion, Store
from cluster.nodes.container_spec import PodContext
from cluster.nodes.image import Image
from cluster.nodes.network import Network, hosts_files, rewrite
from cluster.nodes.pod_worker import PodWorker
from cluster.objects import PODS, Manifest, is_deleting

_BUSY_S, _IDLE_S = 0.02, 0.5


@dataclass
class Kubelet:
    """Run the pods that are bound to a node.

    Attributes:
        folder: files of the pods.
        claims: folder of each persistent volume claim.
        bad_images: image -> why it cannot be pulled.
        lost: crashed nodes: nothing runs there and no status is reported.
        errors: tracebacks; `stop` raises them.
    """

    store: Store
    folder: Path
    image: Image
    is_up: Callable[[], bool]
    claims: dict[tuple[str, str], Path] = field(default_factory=dict)
    bad_images: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    workers: dict[str, PodWorker] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self._network = Network()
        self._thread = threading.Thread(target=self._run, name="k8s-kubelet", daemon=True)

    def start(self) -> None:
        """Create the network, start the thread."""
        self._network.start()
        self._thread.start()

    def stop(self) -> None:
        """Kill every pod; raises the errors."""
        self._stopping = True
        while self._thread.is_alive():
            self.store.poke()
            self._thread.join(0.1)
        self._network.stop()
        if self.errors:
            raise RuntimeError("\n".join(self.errors))

    def _run(self) -> None:
        while not self._stopping:
            seen = self.store.ticks
            try:
                with self.lock:
                    self._sync()
            except Exception:
                self.errors.append(traceback.format_exc())
            busy = any(worker.sandbox is not None for worker in self.workers.values())
            self.store.wait(seen, _BUSY_S if busy else _IDLE_S)
        # In this thread: the kernel kills its children when it ends, and they would not be waited for.
        for worker in self.workers.values():
            worker.stop()

    def _sync(self) -> None:
        if not self.is_up():
            # Containers keep running; neither new pods nor status reports are possible.
            for worker in self._living():
                worker.step(worker.pod)
            return
        pods = {pod["metadata"]["uid"]: pod for pod in self.store.select(PODS)}
        for uid, pod in pods.items():
            if uid not in self.workers and _is_runnable(pod, self.lost):
                self.workers[uid] = self._new_worker(pod)
        for worker in self._living():
            worker.bad_image = self._bad_image(worker.pod)
            worker.step(pods.get(worker.pod["metadata"]["uid"]))
        self._write_hosts_files()
        for worker in self._living():
            self._report(worker, pods.get(worker.pod["metadata"]["uid"]))

    def _living(self) -> list[PodWorker]:
        """Workers of nodes that have not crashed."""
        return [worker for worker in self.workers.values() if worker.pod["spec"]["nodeName"] not in self.lost]

    def _new_worker(self, pod: Manifest) -> PodWorker:
        folder = self.folder / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        return PodWorker(PodContext(self.store, self.image, folder, self.claims), self._network, pod)

    def _bad_image(self, pod: Manifest) -> str:
        images = [container["image"] for container in pod["spec"]["containers"]]
        return next((self.bad_images[image] for image in images if image in self.bad_images), "")

    def _write_hosts_files(self) -> None:
        endpoints = [endpoint for worker in self._living() if (endpoint := worker.endpoint) is not None]
        for uid, text in hosts_files(self.store, endpoints).items():
            etc = self.workers[uid].folder / "etc"
            if etc.is_dir():
                rewrite(etc / "hosts", text)

    def _report(self, worker: PodWorker, pod: Manifest | None) -> None:
        while worker.events:
            kind, reason, message = worker.events.pop(0)
            record_event(self.store, worker.pod, kind, reason, message, "kubelet")
        if pod is None:
            return
        namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))

        def change(obj: Manifest) -> None:
            if obj["metadata"]["uid"] == uid and obj["status"]["phase"] not in ("Succeeded", "Failed"):
                obj["status"] = worker.status(obj["status"])

        try:
            after = self.store.update(PODS, namespace, name, change)
            # The final status: the API server may delete the pod once its finalizers are removed.
            if is_deleting(after) and worker.has_ended:
                self.store.delete(PODS, namespace, name, Deletion(grace_s=0, uid=uid))
        except ApiError:
            return  # deleted in the meantime

    # For fault injection.

    def worker(self, pod: Manifest) -> PodWorker:
        """Worker of a pod."""
        return self.workers[pod["metadata"]["uid"]]

    def lose(self, node: str) -> None:
        """Crash a node: its processes are killed and nothing is reported."""
        with self.lock:
            self.lost.add(node)
            for worker in self.workers.values():
                if worker.pod["spec"]["nodeName"] == node:
                    worker.stop()

    # api.log_streams.LogSource

    def log(self, pod: Manifest, container: str) -> Path:
        """Log file of a container."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if (node := pod["spec"].get("nodeName")) in self.lost:
            address = f"https://{node}:10250/containerLogs"
            raise ApiError(500, "InternalError", f'Get "{address}": dial tcp: i/o timeout')
        state = self.workers[uid].containers[container] if uid in self.workers else None
        if state is None or state.container is None:
            reason = state.waiting[0] if state is not None else "PodInitializing"
            raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        return state.container.log

    def is_writing(self, pod: Manifest, container: str) -> bool:
        """Whether the container is running."""
        return self.worker(pod).containers[container].is_running


def _is_runnable(pod: Manifest, lost: set[str]) -> bool:
    node = pod["spec"].get("nodeName")
    return node is not None and node not in lost and pod["status"]["phase"] in ("Pending", "Running")
