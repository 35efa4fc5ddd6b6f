"""The control plane of a cluster: API server, controllers, scheduler; what clients and tests see of it."""

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
from k8s_api import ApiServer
from k8s_controllers import Manager, Sync
from k8s_gc import GarbageCollector, PodCollector, TtlController
from k8s_hand import HandKubelet
from k8s_image import Image
from k8s_jobs import JobController
from k8s_kubelet import Kubelet
from k8s_objects import EVENTS, JOBS, NAMESPACES, NODES, PODS, Manifest, Resource, is_true, set_condition
from k8s_pod_security import PodSecurity
from k8s_pods import Pod
from k8s_requests import Request
from k8s_rules import Rules
from k8s_scheduler import Scheduler
from k8s_store import Store

CONTEXT = "test"


@dataclass(frozen=True)
class ClusterSettings:
    """How a cluster is made.

    Attributes:
        nodes: their number; called node-1, node-2, ...
        gpus_per_node: nvidia.com/gpu that each pretends to have.
        back_off_s: before a Job's pod is replaced, doubled with each failure; really 10.
        ttl_scale: ttlSecondsAfterFinished is multiplied by it.
        run_pods: False: a control plane without nodes, where tests say how pods fare; needs no root.
    """

    nodes: int = 2
    gpus_per_node: int = 8
    back_off_s: float = 0.2
    ttl_scale: float = 1.0
    run_pods: bool = True


class ControlPlane:
    """From `with` to its end; leaves no process, no file and no network.

    Attributes:
        folder: everything it writes.
        image: what every container has: workspace, user.
        hand: by which tests say how pods fare, where none run.
        rules: refusals and warnings of the API server.
        store: its memory, for what the methods do not say.
        controllers: what looks at the store after each change; a test may add one before the start.
        start_s: seconds that the start took.
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
        self.hand = HandKubelet(self.store, self.folder / "pods")
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
        """API server, namespace `default`, nodes, the claim `runs`; leaves nothing when that fails."""
        began = time.monotonic()
        try:
            self.folder.mkdir()
            self._furnish()
            if self.settings.run_pods:
                self.api.logs = self.kubelet
                self.kubelet.start()
            else:
                self.api.logs = self.hand
            self.api.start()
            self._manager.start()
            self._write_kubeconfig()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - began

    def stop(self) -> None:
        """End every pod, thread and connection; raises what broke in a controller."""
        try:
            self._manager.stop()
        finally:
            try:
                self.kubelet.stop()
            finally:
                self.api.end()
                shutil.rmtree(self.folder, ignore_errors=True)

    def _furnish(self) -> None:
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
        """The variables that `dist-train` and kubectl need to talk to this cluster."""
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
        """What clients sent so far, in order; controllers' work is not among it."""
        return list(self.api.requests)

    def sent(self, method: str, plural: str) -> list[Manifest]:
        """The bodies of requests of a method to a resource, `POST` `jobs`; also of refused ones."""
        return [
            request.manifest
            for request in self.requests
            if request.method == method and plural in request.path.split("/") and request.body
        ]

    def down(self) -> None:
        """The API server goes away: connections are cut, new ones refused; pods go on."""
        self.api.stop()

    def up(self) -> None:
        """It is back on the same port and knows everything."""
        self.api.start()
        self.store.poke()

    def expire(self) -> None:
        """Every resourceVersion so far is too old: watches get 410."""
        self.store.forget()

    # What there is.

    def pods(self, namespace: str = "") -> list[Pod]:
        """All pod objects, by age."""
        return [Pod(manifest) for manifest in self.store.select(PODS, namespace)]

    def pod(self, index: int) -> Pod:
        """The newest pod of a completion index."""
        found = [pod for pod in self.pods() if pod.index == index]
        assert found, f"no pod of index {index}: {self}"
        return found[-1]

    def phases(self) -> list[str]:
        """Of all pods, by index; `Terminating` where one is being removed."""
        return [pod.word for pod in sorted(self.pods(), key=lambda pod: pod.index)]

    def logs(self, pod: Pod, container: str = "") -> str:
        """What a container wrote; also of pods that are gone."""
        name = container or pod.manifest["spec"]["containers"][0]["name"]
        path = self.folder / "pods" / pod.uid / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def objects(self, resource: Resource, namespace: str = "") -> list[Manifest]:
        """All of a kind: `cluster.objects(SERVICES)`."""
        return self.store.select(resource, namespace)

    def job(self, name: str = "") -> Manifest:
        """A Job; the only one when there is no name."""
        found = [job for job in self.store.select(JOBS) if not name or job["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} Jobs: {self}"
        return found[0]

    def verdict(self, name: str = "") -> str:
        """`Complete`, `Failed: BackoffLimitExceeded`; empty while the Job goes on."""
        job = self.job(name)
        for kind in ("Complete", "Failed"):
            if is_true(job, kind):
                reason = next(c["reason"] for c in job["status"]["conditions"] if c["type"] == kind)
                return kind if kind == "Complete" else f"{kind}: {reason}"
        return ""

    def events(self, reason: str = "") -> list[str]:
        """Messages of events, all or of a reason."""
        return [e["message"] for e in self.store.select(EVENTS) if not reason or e["reason"] == reason]

    def wait_for(self, ready: Callable[[], bool], what: str, within_s: float = 30) -> None:
        """Poll until it is so; the test fails with `what` and the state of things after the bound."""
        deadline = time.monotonic() + within_s
        while not ready():
            faults = [*self._manager.faults, *self.kubelet.faults]
            assert not faults, faults[0]
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self}"
            time.sleep(0.02)

    def wait_phases(self, *phases: str, within_s: float = 30) -> None:
        """Until the pods are so, by index."""
        self.wait_for(lambda: self.phases() == list(phases), f"pods are {phases}", within_s)

    def wait_said(self, text: str, *indexes: int, within_s: float = 60) -> None:
        """Until the newest pods of these indexes have written it."""

        def said(index: int) -> bool:
            newest = [pod for pod in self.pods() if pod.index == index][-1:]
            return bool(newest) and text in self.logs(newest[0])

        self.wait_for(lambda: all(map(said, indexes)), f"{text!r} from pods {indexes}", within_s)

    def wait_verdict(self, verdict: str, name: str = "", within_s: float = 60) -> None:
        """Until the Job has ended so; another end fails at once."""
        self.wait_for(lambda: self.verdict(name) != "", f"the Job is {verdict}", within_s)
        assert self.verdict(name) == verdict, f"{self.verdict(name)}\n{self}"

    def __str__(self) -> str:
        """Pods, conditions, events, ends of logs: for a failing test's last words."""
        lines = [str(pod) for pod in self.pods()]
        lines += [f"{job['metadata']['name']}: {job['status']}" for job in self.store.select(JOBS)]
        lines += [f"event {e['reason']}: {e['message']}" for e in self.store.select(EVENTS)]
        for path in sorted((self.folder / "pods").glob("*/*.log")):
            text = path.read_text(errors="replace").splitlines()[-15:]
            lines += [f"--- {path.parent.name}/{path.name}", *text]
        return "\n".join(lines)
