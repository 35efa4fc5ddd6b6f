"""spec.podFailurePolicy: rules in order, the first that matches decides.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
https://kubernetes.io/docs/tasks/job/pod-failure-policy/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k8s_objects import Manifest

Action = Literal["FailJob", "Ignore", "Count"]


@dataclass(frozen=True)
class Judgement:
    """What becomes of a failed pod.

    Attributes:
        message: why the whole Job fails; empty unless the action is FailJob.
    """

    action: Action
    message: str = ""

    @property
    def counts(self) -> bool:
        """Whether it goes towards the backoffLimit."""
        return self.action != "Ignore"


def judge(policy: Manifest | None, pod: Manifest) -> Judgement:
    """By the first matching rule; Count when none matches."""
    for index, rule in enumerate((policy or {}).get("rules") or []):
        why = _on_exit_codes(rule["onExitCodes"], pod) if "onExitCodes" in rule else _on_conditions(rule, pod)
        if why:
            said = f"{why} matching {rule['action']} rule at index {index}"
            return Judgement(rule["action"], said if rule["action"] == "FailJob" else "")
    return Judgement("Count")


def _on_exit_codes(wanted: Manifest, pod: Manifest) -> str:
    """A container that has ended, with a code other than 0, of the name if one is given."""
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
