"""Scheduler: bind pods to nodes, or record why none fits.

Considers readiness and cordons of nodes, nodeSelector, extended resources such as nvidia.com/gpu, and that
claims exist. Not emulated: CPU and memory, affinity, taints, preemption, other schedulers' pod groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from cluster.api.events import record_event
from cluster.api.quantities import quantity
from cluster.api.selectors import matches
from cluster.api.store import Store
from cluster.objects import CLAIMS, NODES, PODS, Manifest, is_deleting, is_true, set_condition

NAME = "default-scheduler"


@dataclass
class Scheduler:
    """Bind every pod without a node.

    Attributes:
        hold: while not empty, no pod is bound, and this is the message.
        name: spec.schedulerName of its pods.
    """

    store: Store
    hold: str = ""
    name: str = NAME
    _next: int = field(default=0)

    def sync(self) -> None:
        """Schedule all pending pods once."""
        with self.store.lock:
            for pod in self.store.select(PODS):
                if "nodeName" not in pod["spec"] and not is_deleting(pod) and self._is_ours(pod):
                    self._bind(pod)

    def choose(self, pod: Manifest, assumed: Sequence[Manifest] = ()) -> tuple[str, str]:
        """Return a node, or why there is none.

        Args:
            assumed: pods to be treated as bound already.
        """
        nodes = self.store.select(NODES)
        if why := self.hold or self._missing_claim(pod):
            return "", why
        others = [*self.store.select(PODS), *assumed]
        reasons = {node["metadata"]["name"]: _reason_against(pod, node, others) for node in nodes}
        fitting = [name for name, reason in reasons.items() if not reason]
        if fitting:
            self._next += 1
            return fitting[self._next % len(fitting)], ""
        counts = sorted({(list(reasons.values()).count(one), one) for one in reasons.values()})
        summary = ", ".join(f"{count} {text}" for count, text in counts)
        return "", f"0/{len(nodes)} nodes are available: {summary}."

    def _is_ours(self, pod: Manifest) -> bool:
        return bool(pod["spec"].get("schedulerName") == self.name) and not pod["spec"].get("schedulingGates")

    def _bind(self, pod: Manifest) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        node, why = self.choose(pod)
        if why:
            self._mark_unschedulable(pod, why)
            return

        def bind(obj: Manifest) -> None:
            obj["spec"]["nodeName"] = node
            set_condition(obj, "PodScheduled", "True")

        self.store.update(PODS, namespace, name, bind)
        record_event(
            self.store,
            pod,
            "Normal",
            "Scheduled",
            f"Successfully assigned {namespace}/{name} to {node}",
            self.name,
        )

    def _mark_unschedulable(self, pod: Manifest, why: str) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]

        def note(obj: Manifest) -> None:
            set_condition(obj, "PodScheduled", "False", "Unschedulable", why)

        before = pod["metadata"]["resourceVersion"]
        after = self.store.update(PODS, namespace, name, note)
        if after["metadata"]["resourceVersion"] != before:
            record_event(self.store, pod, "Warning", "FailedScheduling", why, self.name)

    def _missing_claim(self, pod: Manifest) -> str:
        for volume in pod["spec"].get("volumes") or []:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and self.store.find(CLAIMS, pod["metadata"]["namespace"], claim) is None:
                total = len(self.store.select(NODES))
                return f'0/{total} nodes are available: persistentvolumeclaim "{claim}" not found.'
        return ""


def _reason_against(pod: Manifest, node: Manifest, others: Sequence[Manifest]) -> str:
    if not is_true(node, "Ready"):
        return "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    selector = pod["spec"].get("nodeSelector")
    if selector and not matches(node["metadata"].get("labels"), selector):
        return "node(s) didn't match Pod's node affinity/selector"
    free = {name: quantity(text) for name, text in node["status"].get("allocatable", {}).items()}
    for other in others:
        if other["spec"].get("nodeName") == node["metadata"]["name"] and not _has_ended(other):
            for name, amount in requested(other).items():
                free[name] = free.get(name, Decimal(0)) - amount
    short = [name for name, amount in requested(pod).items() if amount > free.get(name, Decimal(0))]
    return f"Insufficient {short[0]}" if short else ""


def requested(pod: Manifest) -> dict[str, Decimal]:
    """Extended resources (`nvidia.com/gpu`) that the containers of a pod request."""
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for name, text in (container["resources"].get("requests") or {}).items():
            if "/" in name:
                total[name] = total.get(name, Decimal(0)) + quantity(text)
    return total


def _has_ended(pod: Manifest) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
