"""Control plane: API server, controllers, scheduler, and the accessors that tests use."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from cluster.api.errors import ApiError
from cluster.api.pod_security import PodSecurity
from cluster.api.requests import Request
from cluster.api.rules import Rule, Rules
from cluster.api.server import ApiServer
from cluster.api.store import Store
from cluster.controllers.garbage_collection import GarbageCollector, PodCollector, TtlController
from cluster.controllers.jobs import JobController
from cluster.controllers.manager import Manager, Sync
from cluster.controllers.scheduler import Scheduler
from cluster.nodes.image import Image
from cluster.nodes.kubelet import Kubelet
from cluster.nodes.manual_kubelet import ManualKubelet
from cluster.objects import EVENTS, JOBS, NAMESPACES, NODES, PODS, Manifest, Resource, is_true, set_condition
from cluster.pod import Pod

CONTEXT = "test"


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster.

    Attributes:
        nodes: number of nodes; their names are node-1, node-2, ...
        gpus_per_node: simulated nvidia.com/gpu of each node.
        back_off_s: delay before a Job's pod is replaced, doubled with each failure; 10 s in Kubernetes.
        ttl_scale: factor of ttlSecondsAfterFinished.
        run_pods: False: no kubelet; tests set the state of pods through `manual_kubelet`; needs no root.
    """

    nodes: int = 2
    gpus_per_node: int = 8
    back_off_s: float = 0.2
    ttl_scale: float = 1.0
    run_pods: bool = True


class ControlPlane:
    """A control plane, used as a context manager; leaves no process, file or network.

    Attributes:
        folder: all files.
        image: image of every container: workspace, user.
        manual_kubelet: sets the state of pods when no kubelet runs.
        rules: injected errors and warnings of the API server.
        store: the object store, for whatever has no method here.
        controllers: run after each change; a test may add one before the start.
        start_s: duration of the start.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.folder = Path(tempfile.gettempdir()).resolve() / f"dist-train-k8s-{secrets.token_hex(4)}"
        self.store = Store()
        self.rules = Rules()
        self.image = Image()
        self.api = ApiServer(self.store, self.rules)
        self.jobs = JobController(self.store, self.settings.back_off_s)
        self.scheduler = Scheduler(self.store)
        self.kubelet = Kubelet(self.store, self.folder / "pods", self.image, lambda: self.api.up)
        self.manual_kubelet = ManualKubelet(self.store, self.folder / "pods")
        ttl = TtlController(self.store, self.settings.ttl_scale)
        collector, pod_collector = GarbageCollector(self.store), PodCollector(self.store)
        self.controllers: list[Sync] = [
            *(self.jobs.sync, pod_collector.sync, collector.sync, ttl.sync, self.scheduler.sync)
        ]
        self._manager = Manager(self.store, self.controllers, lambda: self.api.up)
        self.start_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start API server and controllers; create namespaces and nodes; cleans up when that fails."""
        began = time.monotonic()
        try:
            self.folder.mkdir()
            self._create_initial_objects()
            if self.settings.run_pods:
                self.api.logs = self.kubelet
                self.kubelet.start()
            else:
                self.api.logs = self.manual_kubelet
            self.api.start()
            self._manager.start()
            self._write_kubeconfig()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began

    def stop(self) -> None:
        """End every pod, thread and connection; raises errors of controllers and kubelet."""
        try:
            self._manager.stop()
        finally:
            try:
                self.kubelet.stop()
            finally:
                self.api.shut_down()
                shutil.rmtree(self.folder, ignore_errors=True)

    def _create_initial_objects(self) -> None:
        self.store.admission.append(PodSecurity(self.store))
        for name in ("default", "kube-system"):
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}})
        for number in range(1, self.settings.nodes + 1):
            self._add_node(f"node-{number}")

    def _add_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name}
        self.store.create(NODES, "", {"metadata": {"name": name, "labels": labels}, "spec": {}})

        def ready(node: Manifest) -> None:
            node["status"] = {"allocatable": {"nvidia.com/gpu": str(self.settings.gpus_per_node)}}
            set_condition(node, "Ready", "True", "KubeletReady")

        self.store.update(NODES, "", name, ready)

    # For clients.

    @property
    def kubeconfig(self) -> Path:
        """One context, `test`, with namespace `default`."""
        return self.folder / "kubeconfig"

    @property
    def environ(self) -> Mapping[str, str]:
        """Environment for `dist-train` and kubectl to use this cluster."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def _write_kubeconfig(self) -> None:
        context = {"cluster": CONTEXT, "user": "researcher", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": CONTEXT,
            "clusters": [{"name": CONTEXT, "cluster": {"server": self.api.url}}],
            "contexts": [{"name": CONTEXT, "context": context}],
            "users": [{"name": "researcher", "user": {"token": "not-a-secret"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)

    @property
    def requests(self) -> list[Request]:
        """Requests of clients so far, in order; controllers use the store directly."""
        return list(self.api.requests)

    def sent(self, method: str, plural: str) -> list[Manifest]:
        """Bodies of a method's requests to a resource, `POST` `jobs`; refused requests included."""
        return [
            request.manifest
            for request in self.requests
            if request.method == method and plural in request.path.split("/") and request.body
        ]

    def down(self) -> None:
        """Stop the API server: connections are closed, new ones refused; pods keep running."""
        self.api.stop()

    def up(self, refused: int = 0) -> None:
        """Start the API server again, on the same port with the same objects.

        Args:
            refused: how many requests get 403 at first: a real one (1.36) refuses everybody for a moment,
                until its authorizer has read the roles.
        """
        if refused:
            self.rules.add(Rule("*", "*", error=ApiError(403, "Forbidden", ""), left=refused))
        self.api.start()
        self.store.poke()

    def expire(self) -> None:
        """Compact the history: every resourceVersion so far gets 410."""
        self.store.forget()

    # Objects.

    def pods(self, namespace: str = "") -> list[Pod]:
        """All pods, oldest first."""
        return [Pod(manifest) for manifest in self.store.select(PODS, namespace)]

    def pod(self, index: int) -> Pod:
        """Newest pod of a completion index."""
        found = [pod for pod in self.pods() if pod.index == index]
        assert found, f"no pod of index {index}: {self}"
        return found[-1]

    def phases(self) -> list[str]:
        """Phases of all pods by index; `Terminating` for one being deleted."""
        return [pod.display_phase for pod in sorted(self.pods(), key=lambda pod: pod.index)]

    def logs(self, pod: Pod, container: str = "") -> str:
        """Output of a container, also of a deleted pod."""
        name = container or pod.manifest["spec"]["containers"][0]["name"]
        path = self.folder / "pods" / pod.uid / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def objects(self, resource: Resource, namespace: str = "") -> list[Manifest]:
        """All objects of a kind: `cluster.objects(SERVICES)`."""
        return self.store.select(resource, namespace)

    def job(self, name: str = "") -> Manifest:
        """A Job by name; without a name the only one."""
        found = [job for job in self.store.select(JOBS) if not name or job["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} Jobs: {self}"
        return found[0]

    def job_result(self, name: str = "") -> str:
        """Result of a Job, `Complete` or `Failed: BackoffLimitExceeded`; empty until it has finished."""
        job = self.job(name)
        for kind in ("Complete", "Failed"):
            if is_true(job, kind):
                reason = next(c["reason"] for c in job["status"]["conditions"] if c["type"] == kind)
                return kind if kind == "Complete" else f"{kind}: {reason}"
        return ""

    def events(self, reason: str = "") -> list[str]:
        """Messages of all events, or of those with a reason."""
        return [e["message"] for e in self.store.select(EVENTS) if not reason or e["reason"] == reason]

    def wait_for(self, ready: Callable[[], bool], what: str, within_s: float = 30) -> None:
        """Poll until `ready`; fails after the limit with `what` and the state of the cluster."""
        deadline = time.monotonic() + within_s
        while not ready():
            errors = [*self._manager.errors, *self.kubelet.errors]
            assert not errors, errors[0]
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self}"
            time.sleep(0.02)

    def wait_phases(self, *phases: str, within_s: float = 30) -> None:
        """Wait for these phases of the pods, by index."""
        self.wait_for(lambda: self.phases() == list(phases), f"pods are {phases}", within_s)

    def wait_output(self, text: str, *indexes: int, within_s: float = 60) -> None:
        """Wait until the newest pods of these indexes have written the text."""

        def has_written(index: int) -> bool:
            newest = [pod for pod in self.pods() if pod.index == index][-1:]
            return bool(newest) and text in self.logs(newest[0])

        self.wait_for(lambda: all(map(has_written, indexes)), f"{text!r} from pods {indexes}", within_s)

    def wait_job_result(self, result: str, name: str = "", within_s: float = 60) -> None:
        """Wait until the Job has finished with this result; another result fails at once."""
        self.wait_for(lambda: self.job_result(name) != "", f"the Job is {result}", within_s)
        assert self.job_result(name) == result, f"{self.job_result(name)}\n{self}"

    def __str__(self) -> str:
        """Pods, conditions, events and ends of logs, for the message of a failing test."""
        lines = [str(pod) for pod in self.pods()]
        lines += [f"{job['metadata']['name']}: {job['status']}" for job in self.store.select(JOBS)]
        lines += [f"event {e['reason']}: {e['message']}" for e in self.store.select(EVENTS)]
        for path in sorted((self.folder / "pods").glob("*/*.log")):
            text = path.read_text(errors="replace").splitlines()[-15:]
            lines += [f"--- {path.parent.name}/{path.name}", *text]
        return "\n".join(lines)
