"""Small manifests for the emulator's own tests."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.objects import Manifest

# The order of dist-train's Jobs: disruptions, fatal codes, codes of secondary failures and preemption.
POLICY: Manifest = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 73, 76, 77, 78]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75, 79]}},
    ]
}


def container(*command: str, **more: object) -> Manifest:
    """A container named main."""
    return {"name": "main", "image": "example.org/train:1", "command": list(command), **more}


def job(
    name: str = "train",
    *command: str,
    completions: int = 2,
    policy: Manifest | None = POLICY,
    backoff_limit: int = 1,
    grace_s: int = 30,
    containers: Sequence[Manifest] = (),
    volumes: Sequence[Manifest] = (),
    pod: Manifest | None = None,
    **spec: object,
) -> Manifest:
    """An Indexed Job whose pods resolve as `<name>-<index>.<name>`."""
    template: Manifest = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": grace_s,
        "containers": list(containers) or [container(*(command or ("true",)))],
        "volumes": list(volumes),
        **(pod or {}),
    }
    policies = {"podFailurePolicy": policy, "podReplacementPolicy": "Failed"} if policy else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "completionMode": "Indexed",
            "completions": completions,
            "parallelism": completions,
            "backoffLimit": backoff_limit,
            **policies,
            **spec,
            "template": {"metadata": {"labels": {"app": name}}, "spec": template},
        },
    }


def service(name: str = "train", publish: bool = True) -> Manifest:
    """Headless Service of a Job's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": publish,
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"name": "rdzv", "port": 29400}],
        },
    }


def config_map(name: str = "settings", **data: str) -> Manifest:
    """An immutable ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "immutable": True,
        "data": data,
    }


def pod(name: str = "one", **labels: str) -> Manifest:
    """A pod without a controller."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container("true")], "restartPolicy": "Never"},
    }
