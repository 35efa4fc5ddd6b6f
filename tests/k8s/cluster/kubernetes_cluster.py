"""KubernetesCluster: control plane and nodes on this machine, with fault injection.

with KubernetesCluster() as cluster:
    run(["dist-train", "launch", ...], env=cluster.environ)
    cluster.wait_for(lambda: cluster.phases() == ["Running", "Running"], "two pods run")
    cluster.kill(cluster.pod(1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.api.errors import ApiError, forbidden
from cluster.api.events import record_event
from cluster.api.pod_security import LABEL
from cluster.api.rules import Rule
from cluster.api.store import Deletion
from cluster.control_plane import ClusterSettings, ControlPlane
from cluster.nodes.sandbox import Sandbox
from cluster.objects import (
    CLAIMS,
    NAMESPACES,
    NODES,
    OPERATORS,
    PODS,
    SECRETS,
    Manifest,
    Resource,
    set_condition,
)
from cluster.operators.install import Operators
from cluster.operators.kueue import Kueue
from cluster.pod import Pod

CLAIM = "runs"


class KubernetesCluster(ControlPlane):
    """A control plane with nodes, actions of administrators, and faults of nodes and pods.

    Attributes:
        kueue: active once installed.
        operators: each active once installed.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        super().__init__(settings)
        self.kueue = Kueue(self.store)
        self.operators = Operators(self.store, self.settings.ttl_scale)

    def _create_initial_objects(self) -> None:
        super()._create_initial_objects()
        self.claim(CLAIM)

    # Actions of administrators.

    def install(self, operator: str) -> None:
        """Install jobset, kueue, volcano or trainer (and jobset with it): kinds, webhooks, controllers."""
        if operator == "trainer" and OPERATORS["jobset"][0] not in self.store.resources:
            self.install("jobset")
        self.store.resources.extend(OPERATORS[operator])
        if operator == "kueue":
            self.store.admission.append(self.kueue.admit)
            self.controllers.append(self.kueue.sync)
        self.controllers.extend(self.operators.install(operator))
        if self.api.up:
            self.down()
            self.up()

    def namespace(self, name: str, **labels: str) -> None:
        """Create a namespace."""
        self.store.create(NAMESPACES, "", {"metadata": {"name": name, "labels": labels}})

    def enforce_restricted(self, namespace: str = "default") -> None:
        """Enforce the restricted Pod Security Standard: other pods are refused, their Jobs get a warning."""

        def change(obj: Manifest) -> None:
            labels = obj["metadata"].setdefault("labels", {})
            labels |= {f"{LABEL}enforce": "restricted", f"{LABEL}warn": "restricted"}

        self.store.update(NAMESPACES, "", namespace, change)

    def refuse_pods(self, why: str) -> None:
        """Refuse every new pod by admission: `exceeded quota: team, requested: pods=1, ...`."""

        def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
            if resource == PODS:
                raise forbidden(PODS, obj["metadata"]["name"], why)

        self.store.admission.append(admit)

    def forbid(self, verb: str, what: str) -> None:
        """Deny a verb to the user's role: `create` `jobs`, `get` `pods/log`, `patch` `*`."""
        self.rules.forbid(verb, what)

    def fail(self, verb: str, what: str, error: ApiError, times: int | None = None) -> None:
        """Answer matching requests with an error, always or `times` times."""
        self.rules.add(Rule(verb, what, error=error, left=times))

    def warn(self, verb: str, what: str, text: str) -> None:
        """Add a Warning header to matching responses."""
        self.rules.add(Rule(verb, what, warning=text))

    def claim(self, name: str, modes: Sequence[str] = ("ReadWriteMany",), namespace: str = "default") -> Path:
        """Create a persistent volume claim; returns its world-writable folder."""
        folder = self.folder / "volumes" / namespace / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        self.store.create(CLAIMS, namespace, {"metadata": {"name": name}, "spec": spec})
        self.kubelet.claims[(namespace, name)] = folder
        return folder

    @property
    def volume(self) -> Path:
        """Folder of the claim `runs`."""
        return self.kubelet.claims[("default", CLAIM)]

    def secret(self, name: str, **values: str) -> None:
        """Create a Secret."""
        self.store.create(SECRETS, "default", {"metadata": {"name": name}, "stringData": values})

    def break_image(self, image: str, why: str = "manifest unknown") -> None:
        """Make pulls of an image fail: ErrImagePull, then ImagePullBackOff."""
        self.kubelet.bad_images[image] = why
        self.store.poke()

    def hold_pods(self, why: str) -> None:
        """Keep new pods Pending, Unschedulable, with this message."""
        self.scheduler.hold = why
        self.store.poke()

    def release_pods(self) -> None:
        """Schedule pods again."""
        self.scheduler.hold = ""
        self.store.poke()

    # Faults of nodes and pods.

    def lose_node(self, node: str) -> None:
        """Crash a node: it is NotReady and its pods stay Terminating for ever.

        Real clusters wait for the pods' tolerationSeconds in between: `silence_node`, then `taint_node`.
        """
        self.silence_node(node)
        self.taint_node(node)

    def silence_node(self, node: str) -> None:
        """Kill a node's processes: node and pods are NotReady, the rest of the pods' status stays.

        https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
        """
        self.kubelet.lose(node)

        def unknown(obj: Manifest) -> None:
            set_condition(
                obj, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
            )

        self.store.update(NODES, "", node, unknown)
        for pod in self._living_on(node):
            self.store.update(PODS, pod.namespace, pod.name, _not_ready)
            record_event(
                self.store, pod.manifest, "Warning", "NodeNotReady", "Node is not ready", "node-controller"
            )

    def taint_node(self, node: str) -> None:
        """Delete the node's pods, as the taint manager does after their tolerationSeconds."""
        for pod in self._living_on(node):
            self.disrupt(pod, "DeletionByTaintManager", "deleting due to NoExecute taint")

    def _living_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods() if pod.node == node and not pod.has_ended]

    def delete_node(self, node: str) -> None:
        """Delete the node object: PodGC marks its pods Failed and deletes them."""
        self.store.delete(NODES, "", node)

    def disrupt(self, pod: Pod, reason: str = "PreemptionByScheduler", message: str = "preempted") -> None:
        """Set DisruptionTarget, then delete with grace period: preemption, eviction by API."""

        def mark(obj: Manifest) -> None:
            set_condition(obj, "DisruptionTarget", "True", reason, message)

        self.store.update(PODS, pod.namespace, pod.name, mark)
        self.delete(pod)

    def drain_node(self, node: str) -> None:
        """kubectl drain: cordon, then evict the node's pods by API."""

        def cordon(obj: Manifest) -> None:
            obj["spec"]["unschedulable"] = True

        self.store.update(NODES, "", node, cordon)
        for pod in self._living_on(node):
            self.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")

    def evict(self, pod: Pod, why: str = "The node was low on resource: memory.") -> None:
        """Evict by node pressure: killed at once, status.reason Evicted, the object stays."""

        def mark(obj: Manifest) -> None:
            set_condition(obj, "DisruptionTarget", "True", "TerminationByKubelet", why)

        self.store.update(PODS, pod.namespace, pod.name, mark)
        with self.kubelet.lock:
            self.kubelet.worker(pod.manifest).end_now("Evicted", why)

    def delete(self, pod: Pod, grace_s: int | None = None) -> None:
        """kubectl delete pod; grace 0 is --force."""
        self.store.delete(PODS, pod.namespace, pod.name, Deletion(grace_s=grace_s))

    def kill(self, pod: Pod, number: int = 9) -> None:
        """Send a signal to process 1 of the pod's containers, from outside."""
        with self.kubelet.lock:
            for state in self.kubelet.worker(pod.manifest).containers.values():
                if state.is_running and state.container is not None:
                    state.container.send(number)

    def oom(self, pod: Pod) -> None:
        """Kill as the kernel's OOM killer does: SIGKILL, reason OOMKilled."""
        with self.kubelet.lock:
            for state in self.kubelet.worker(pod.manifest).containers.values():
                state.oom = True
        self.kill(pod)

    def disconnect(self, pod: Pod) -> None:
        """Disconnect the pod's network; its processes keep running."""
        self._sandbox(pod).disconnect()

    def reconnect(self, pod: Pod) -> None:
        """Reconnect the pod's network."""
        self._sandbox(pod).reconnect()

    def prefix(self, pod: Pod) -> Sequence[str]:
        """Command prefix that runs a command in the pod's network namespace."""
        return self._sandbox(pod).prefix

    def _sandbox(self, pod: Pod) -> Sandbox:
        sandbox = self.kubelet.worker(pod.manifest).sandbox
        assert sandbox is not None, f"{pod.name} has no network"
        return sandbox


def _not_ready(obj: Manifest) -> None:
    set_condition(obj, "Ready", "False")


__all__ = ["ClusterSettings", "KubernetesCluster"]
