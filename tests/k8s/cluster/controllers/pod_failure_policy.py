"""Evaluate spec.podFailurePolicy: the first matching rule decides.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
https://kubernetes.io/docs/tasks/job/pod-failure-policy/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.objects import Manifest

Action = Literal["FailJob", "Ignore", "Count"]


@dataclass(frozen=True)
class PolicyResult:
    """Action for a failed pod.

    Attributes:
        message: why the Job fails; empty unless the action is FailJob.
    """

    action: Action
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether the pod counts towards the backoffLimit."""
        return self.action != "Ignore"


def apply_policy(policy: Manifest | None, pod: Manifest) -> PolicyResult:
    """Action of the first matching rule; Count when none matches."""
    for index, rule in enumerate((policy or {}).get("rules") or []):
        why = _on_exit_codes(rule["onExitCodes"], pod) if "onExitCodes" in rule else _on_conditions(rule, pod)
        if why:
            message = f"{why} matching {rule['action']} rule at index {index}"
            return PolicyResult(rule["action"], message if rule["action"] == "FailJob" else "")
    return PolicyResult("Count")


def _on_exit_codes(wanted: Manifest, pod: Manifest) -> str:
    """Describe the first matching container with a non-zero exit code; empty when there is none."""
    status, name = pod["status"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for group in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(group) or []:
            ended = container["state"].get("terminated")
            if ended is None or ended["exitCode"] == 0:
                continue
            if wanted.get("containerName", container["name"]) != container["name"]:
                continue
            if (ended["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
                return (
                    f"Container {container['name']} for pod {name} failed with exit code {ended['exitCode']}"
                )
    return ""


def _on_conditions(rule: Manifest, pod: Manifest) -> str:
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    patterns = {(pattern["type"], pattern["status"]) for pattern in rule["onPodConditions"]}
    for condition in pod["status"].get("conditions") or []:
        if (condition["type"], condition["status"]) in patterns:
            return f"Pod {name} has condition {condition['type']}"
    return ""
