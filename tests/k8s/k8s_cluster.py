"""A Kubernetes cluster on this machine, for tests and people: API server, controllers, nodes that run pods.

    with KubernetesCluster() as cluster:
        run(["dist-train", "launch", ...], env=cluster.environ)
        cluster.wait_for(lambda: cluster.phases() == ["Running", "Running"], "two pods run")
        cluster.kill(cluster.pod(1))

What each part emulates and what it does not is said at the top of its module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from k8s_events import tell
from k8s_kueue import Kueue
from k8s_objects import CLAIMS, NAMESPACES, NODES, OPERATORS, PODS, SECRETS, Manifest, Resource, set_condition
from k8s_operators import Operators
from k8s_plane import ClusterSettings, ControlPlane
from k8s_pod_security import LABEL
from k8s_pods import Pod
from k8s_rules import Rule
from k8s_sandbox import Sandbox
from k8s_status import ApiError, forbidden
from k8s_store import Deletion

CLAIM = "runs"


class KubernetesCluster(ControlPlane):
    """A control plane with nodes, and all that administrators do and that befalls nodes and pods.

    Attributes:
        kueue: at work once it is installed.
        operators: so are these.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        super().__init__(settings)
        self.kueue = Kueue(self.store)
        self.operators = Operators(self.store, self.settings.ttl_scale)

    def _furnish(self) -> None:
        super()._furnish()
        self.claim(CLAIM)

    # What administrators do.

    def install(self, operator: str) -> None:
        """jobset, kueue, volcano, or trainer with the jobset that it needs: kinds, webhooks, controllers."""
        if operator == "trainer" and OPERATORS["jobset"][0] not in self.store.resources:
            self.install("jobset")
        self.store.resources.extend(OPERATORS[operator])
        if operator == "kueue":
            self.store.admission.append(self.kueue.admit)
            self.controllers.append(self.kueue.sync)
        self.controllers.extend(self.operators.begin(operator))
        if self.api.up:
            self.down()
            self.up()

    def namespace(self, name: str, **labels: str) -> None:
        """Make a namespace."""
        self.store.create(NAMESPACES, "", {"metadata": {"name": name, "labels": labels}})

    def enforce_restricted(self, namespace: str = "default") -> None:
        """The restricted Pod Security Standard: other pods are refused, their Jobs warned of."""

        def change(obj: Manifest) -> None:
            labels = obj["metadata"].setdefault("labels", {})
            labels |= {f"{LABEL}enforce": "restricted", f"{LABEL}warn": "restricted"}

        self.store.update(NAMESPACES, "", namespace, change)

    def refuse_pods(self, why: str) -> None:
        """Admission refuses every new pod: `exceeded quota: team, requested: pods=1, ...`."""

        def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
            if resource == PODS:
                raise forbidden(PODS, obj["metadata"]["name"], why)

        self.store.admission.append(admit)

    def forbid(self, verb: str, what: str) -> None:
        """The user's role lacks a verb: `create` `jobs`, `get` `pods/log`, `patch` `*`."""
        self.rules.forbid(verb, what)

    def fail(self, verb: str, what: str, error: ApiError, times: int | None = None) -> None:
        """Answer so, every time or so many times."""
        self.rules.add(Rule(verb, what, error=error, left=times))

    def warn(self, verb: str, what: str, text: str) -> None:
        """A Warning header beside the answer."""
        self.rules.add(Rule(verb, what, warning=text))

    def claim(self, name: str, modes: Sequence[str] = ("ReadWriteMany",), namespace: str = "default") -> Path:
        """A persistent volume claim; returns its folder, which everybody may write to."""
        folder = self.folder / "volumes" / namespace / name
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        self.store.create(CLAIMS, namespace, {"metadata": {"name": name}, "spec": spec})
        self.kubelet.claims[(namespace, name)] = folder
        return folder

    @property
    def volume(self) -> Path:
        """The folder of the claim `runs`."""
        return self.kubelet.claims[("default", CLAIM)]

    def secret(self, name: str, **values: str) -> None:
        """Make a Secret."""
        self.store.create(SECRETS, "default", {"metadata": {"name": name}, "stringData": values})

    def break_image(self, image: str, why: str = "manifest unknown") -> None:
        """It cannot be pulled: ErrImagePull, then ImagePullBackOff."""
        self.kubelet.bad_images[image] = why
        self.store.poke()

    def hold_pods(self, why: str) -> None:
        """No new pod gets a node: Pending, Unschedulable, with these words."""
        self.scheduler.hold = why
        self.store.poke()

    def release_pods(self) -> None:
        """They get nodes again."""
        self.scheduler.hold = ""
        self.store.poke()

    # What befalls nodes and pods.

    def lose_node(self, node: str) -> None:
        """The node is dead: no process, no word; it is NotReady and its pods are Terminating for ever.

        Real clusters wait for the pods' tolerations in between: `silence_node`, then `taint_node`.
        """
        self.silence_node(node)
        self.taint_node(node)

    def silence_node(self, node: str) -> None:
        """It is dead and NotReady, and so are its pods; the rest of their status stands as it was.

        https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
        """
        self.kubelet.lose(node)

        def unknown(obj: Manifest) -> None:
            set_condition(
                obj, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
            )

        self.store.update(NODES, "", node, unknown)
        for pod in self._left_on(node):
            self.store.update(PODS, pod.namespace, pod.name, _not_ready)
            tell(self.store, pod.manifest, "Warning", "NodeNotReady", "Node is not ready", "node-controller")

    def taint_node(self, node: str) -> None:
        """The pods' tolerations are over: they are to go."""
        for pod in self._left_on(node):
            self.disrupt(pod, "DeletionByTaintManager", "deleting due to NoExecute taint")

    def _left_on(self, node: str) -> list[Pod]:
        return [pod for pod in self.pods() if pod.node == node and not pod.has_ended]

    def delete_node(self, node: str) -> None:
        """The node object goes: PodGC marks its pods Failed and removes them."""
        self.store.delete(NODES, "", node)

    def disrupt(self, pod: Pod, reason: str = "PreemptionByScheduler", message: str = "preempted") -> None:
        """The condition DisruptionTarget, then a deletion with grace: preemption, eviction by API."""

        def mark(obj: Manifest) -> None:
            set_condition(obj, "DisruptionTarget", "True", reason, message)

        self.store.update(PODS, pod.namespace, pod.name, mark)
        self.delete(pod)

    def drain_node(self, node: str) -> None:
        """kubectl drain: no new pods, and the Eviction API for those that are there."""

        def cordon(obj: Manifest) -> None:
            obj["spec"]["unschedulable"] = True

        self.store.update(NODES, "", node, cordon)
        for pod in self._left_on(node):
            self.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")

    def evict(self, pod: Pod, why: str = "The node was low on resource: memory.") -> None:
        """By the node's pressure: killed at once, status.reason Evicted, the object stays."""

        def mark(obj: Manifest) -> None:
            set_condition(obj, "DisruptionTarget", "True", "TerminationByKubelet", why)

        self.store.update(PODS, pod.namespace, pod.name, mark)
        with self.kubelet.lock:
            self.kubelet.worker(pod.manifest).end_now("Evicted", why)

    def delete(self, pod: Pod, grace_s: int | None = None) -> None:
        """kubectl delete pod; with grace 0 it is --force."""
        self.store.delete(PODS, pod.namespace, pod.name, Deletion(grace_s=grace_s))

    def kill(self, pod: Pod, number: int = 9) -> None:
        """A signal to process 1 of the pod's containers, from outside."""
        with self.kubelet.lock:
            for state in self.kubelet.worker(pod.manifest).containers.values():
                if state.is_running and state.container is not None:
                    state.container.send(number)

    def oom(self, pod: Pod) -> None:
        """As the kernel's: SIGKILL, reason OOMKilled."""
        with self.kubelet.lock:
            for state in self.kubelet.worker(pod.manifest).containers.values():
                state.oom = True
        self.kill(pod)

    def cut_cable(self, pod: Pod) -> None:
        """The pod hears and says nothing more, and lives on."""
        self._sandbox(pod).cut()

    def heal(self, pod: Pod) -> None:
        """Plug the cable in again."""
        self._sandbox(pod).heal()

    def prefix(self, pod: Pod) -> Sequence[str]:
        """Words before a command that shall run in the pod's network."""
        return self._sandbox(pod).prefix

    def _sandbox(self, pod: Pod) -> Sandbox:
        sandbox = self.kubelet.worker(pod.manifest).sandbox
        assert sandbox is not None, f"{pod.name} has no network"
        return sandbox


def _not_ready(obj: Manifest) -> None:
    set_condition(obj, "Ready", "False")


__all__ = ["ClusterSettings", "KubernetesCluster"]
