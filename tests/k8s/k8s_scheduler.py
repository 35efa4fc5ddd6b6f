"""The scheduler: gives pods a node, or says why there is none.

Looks at readiness and cordons of nodes, nodeSelector, extended resources such as nvidia.com/gpu, and that
claims exist. Not emulated: CPU and memory, affinity, taints, preemption, other schedulers' pod groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from k8s_events import tell
from k8s_objects import CLAIMS, NODES, PODS, Manifest, is_deleting, is_true, set_condition
from k8s_quantities import quantity
from k8s_selectors import matches
from k8s_store import Store

NAME = "default-scheduler"


@dataclass
class Scheduler:
    """Binds every pod that has no node.

    Attributes:
        hold: while not empty, no pod gets a node, and this is why.
        name: whose pods these are: spec.schedulerName.
    """

    store: Store
    hold: str = ""
    name: str = NAME
    _next: int = field(default=0)

    def sync(self) -> None:
        """All pods once."""
        with self.store.lock:
            for pod in self.store.select(PODS):
                if "nodeName" not in pod["spec"] and not is_deleting(pod) and self._is_ours(pod):
                    self._place(pod)

    def choose(self, pod: Manifest, beside: Sequence[Manifest] = ()) -> tuple[str, str]:
        """A node, or why there is none.

        Args:
            beside: pods to be thought of as bound already.
        """
        nodes = self.store.select(NODES)
        if why := self.hold or self._missing_claim(pod):
            return "", why
        others = [*self.store.select(PODS), *beside]
        reasons = {node["metadata"]["name"]: _objection(pod, node, others) for node in nodes}
        fitting = [name for name, said in reasons.items() if not said]
        if fitting:
            self._next += 1
            return fitting[self._next % len(fitting)], ""
        counts = sorted({(list(reasons.values()).count(said), said) for said in reasons.values()})
        said = ", ".join(f"{count} {text}" for count, text in counts)
        return "", f"0/{len(nodes)} nodes are available: {said}."

    def _is_ours(self, pod: Manifest) -> bool:
        return bool(pod["spec"].get("schedulerName") == self.name) and not pod["spec"].get("schedulingGates")

    def _place(self, pod: Manifest) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        node, why = self.choose(pod)
        if why:
            self._refuse(pod, why)
            return

        def bind(obj: Manifest) -> None:
            obj["spec"]["nodeName"] = node
            set_condition(obj, "PodScheduled", "True")

        self.store.update(PODS, namespace, name, bind)
        tell(
            self.store,
            pod,
            "Normal",
            "Scheduled",
            f"Successfully assigned {namespace}/{name} to {node}",
            self.name,
        )

    def _refuse(self, pod: Manifest, why: str) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

        def note(obj: Manifest) -> None:
            set_condition(obj, "PodScheduled", "False", "Unschedulable", why)

        before = pod["metadata"]["resourceVersion"]
        after = self.store.update(PODS, namespace, name, note)
        if after["metadata"]["resourceVersion"] != before:
            tell(self.store, pod, "Warning", "FailedScheduling", why, self.name)

    def _missing_claim(self, pod: Manifest) -> str:
        for volume in pod["spec"].get("volumes") or []:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and self.store.find(CLAIMS, pod["metadata"]["namespace"], claim) is None:
                total = len(self.store.select(NODES))
                return f'0/{total} nodes are available: persistentvolumeclaim "{claim}" not found.'
        return ""


def _objection(pod: Manifest, node: Manifest, others: Sequence[Manifest]) -> str:
    if not is_true(node, "Ready"):
        return "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    selector = pod["spec"].get("nodeSelector")
    if selector and not matches(node["metadata"].get("labels"), selector):
        return "node(s) didn't match Pod's node affinity/selector"
    room = {name: quantity(text) for name, text in node["status"].get("allocatable", {}).items()}
    for other in others:
        if other["spec"].get("nodeName") == node["metadata"]["name"] and not _has_ended(other):
            for name, amount in wants(other).items():
                room[name] = room.get(name, Decimal(0)) - amount
    short = [name for name, amount in wants(pod).items() if amount > room.get(name, Decimal(0))]
    return f"Insufficient {short[0]}" if short else ""


def wants(pod: Manifest) -> dict[str, Decimal]:
    """The extended resources (`nvidia.com/gpu`) that a pod's containers ask for."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for name, text in (container["resources"].get("requests") or {}).items():
            if "/" in name:
                total[name] = total.get(name, Decimal(0)) + quantity(text)
    return total


def _has_ended(pod: Manifest) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
