"""The kubelets of all nodes, in one thread: pods become real processes on this machine.

Each container's command is process 1 of namespaces of its own (k8s_sandbox.py, k8s_container.py), in a root
that has nothing of this machine but programs; each pod has its address on one bridge (k8s_network.py).
Needs root. Not emulated: resource limits, image pulls, node pressure, device plugins.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from k8s_events import tell
from k8s_image import Image
from k8s_launch import Site
from k8s_network import Network, names_of, rewrite
from k8s_objects import PODS, Manifest, is_deleting
from k8s_pod_worker import PodWorker
from k8s_status import ApiError, bad_request
from k8s_store import Deletion, Store

_BUSY_S, _IDLE_S = 0.02, 0.5


@dataclass
class Kubelet:
    """Runs the pods that have a node.

    Attributes:
        folder: files of the pods.
        claims: the folder of each persistent volume claim.
        bad_images: image -> why it cannot be pulled.
        lost: nodes that are dead: nothing runs there and nothing is told.
        faults: tracebacks of what broke; `stop` raises them.
    """

    store: Store
    folder: Path
    image: Image
    is_up: Callable[[], bool]
    claims: dict[tuple[str, str], Path] = field(default_factory=dict)
    bad_images: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    workers: dict[str, PodWorker] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _ending: bool = False

    def __post_init__(self) -> None:
        self._network = Network()
        self._thread = threading.Thread(target=self._run, name="k8s-kubelet", daemon=True)

    def start(self) -> None:
        """The network, then the pods in the background."""
        self._network.start()
        self._thread.start()

    def stop(self) -> None:
        """Kill every pod; raises what broke."""
        self._ending = True
        while self._thread.is_alive():
            self.store.poke()
            self._thread.join(0.1)
        self._network.stop()
        if self.faults:
            raise RuntimeError("\n".join(self.faults))

    def _run(self) -> None:
        while not self._ending:
            seen = self.store.ticks
            try:
                with self.lock:
                    self._sync()
            except Exception:
                self.faults.append(traceback.format_exc())
            busy = any(worker.sandbox is not None for worker in self.workers.values())
            self.store.wait(seen, _BUSY_S if busy else _IDLE_S)
        # By this thread: what it has started dies with it anyhow, without being waited for.
        for worker in self.workers.values():
            worker.stop()

    def _sync(self) -> None:
        if not self.is_up():
            # Containers go on; nothing new is heard and nothing can be told.
            for worker in self._living():
                worker.step(worker.pod)
            return
        pods = {pod["metadata"]["uid"]: pod for pod in self.store.select(PODS)}
        for uid, pod in pods.items():
            if uid not in self.workers and _is_for_us(pod, self.lost):
                self.workers[uid] = self._worker(pod)
        for worker in self._living():
            worker.bad_image = self._bad_image(worker.pod)
            worker.step(pods.get(worker.pod["metadata"]["uid"]))
        self._tell_names()
        for worker in self._living():
            self._tell(worker, pods.get(worker.pod["metadata"]["uid"]))

    def _living(self) -> list[PodWorker]:
        """Those whose node is not dead."""
        return [worker for worker in self.workers.values() if worker.pod["spec"]["nodeName"] not in self.lost]

    def _worker(self, pod: Manifest) -> PodWorker:
        folder = self.folder / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        return PodWorker(Site(self.store, self.image, folder, self.claims), self._network, pod)

    def _bad_image(self, pod: Manifest) -> str:
        images = [container["image"] for container in pod["spec"]["containers"]]
        return next((self.bad_images[image] for image in images if image in self.bad_images), "")

    def _tell_names(self) -> None:
        places = [place for worker in self._living() if (place := worker.place) is not None]
        for uid, text in names_of(self.store, places).items():
            etc = self.workers[uid].folder / "etc"
            if etc.is_dir():
                rewrite(etc / "hosts", text)

    def _tell(self, worker: PodWorker, pod: Manifest | None) -> None:
        while worker.said:
            kind, reason, message = worker.said.pop(0)
            tell(self.store, worker.pod, kind, reason, message, "kubelet")
        if pod is None:
            return
        namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))

        def change(obj: Manifest) -> None:
            if obj["metadata"]["uid"] == uid and obj["status"]["phase"] not in ("Succeeded", "Failed"):
                obj["status"] = worker.status(obj["status"])

        try:
            after = self.store.update(PODS, namespace, name, change)
            # The last word: the API server may forget it, once its finalizers have gone.
            if is_deleting(after) and worker.has_ended:
                self.store.delete(PODS, namespace, name, Deletion(grace_s=0, uid=uid))
        except ApiError:
            return  # it has gone in the meantime

    # What a node does on a test's word.

    def worker(self, pod: Manifest) -> PodWorker:
        """Who runs the pod."""
        return self.workers[pod["metadata"]["uid"]]

    def lose(self, node: str) -> None:
        """The node is dead at once, and silent."""
        with self.lock:
            self.lost.add(node)
            for worker in self.workers.values():
                if worker.pod["spec"]["nodeName"] == node:
                    worker.stop()

    # k8s_requests.Logs

    def log(self, pod: Manifest, container: str) -> Path:
        """The container's output."""
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
        """Whether it still runs."""
        return self.worker(pod).containers[container].is_running


def _is_for_us(pod: Manifest, lost: set[str]) -> bool:
    node = pod["spec"].get("nodeName")
    return node is not None and node not in lost and pod["status"]["phase"] in ("Pending", "Running")
