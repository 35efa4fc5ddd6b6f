"""The objects that support the job object: ConfigMap, headless Service, NetworkPolicy."""

from __future__ import annotations

from typing import Any

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import RUN_LABEL, labels, object_name
from launchers._kubernetes.manifest.pod_paths import CONFIG_NAME, RDZV_PORT

# The API server accepts 1 MiB in total; the names count too.
_CONFIG_LIMIT = 2**20 - 1024
# Set by the Job controller on its pods.
_JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


def metadata(spec: JobSpec, options: Options, name: str | None = None) -> dict[str, Any]:
    """The metadata of every object: name, namespace and the run's labels."""
    return {"name": name or object_name(spec), "namespace": options.namespace, "labels": labels(spec)}


def config_map(spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the ConfigMap of the resolved config; immutable, so that every restart reads the same one."""
    text = spec.config_yaml or ""
    if (size := len(text.encode())) > _CONFIG_LIMIT:
        raise ConfigError(
            f"the config has {size} bytes; a ConfigMap holds {_CONFIG_LIMIT}",
            hint="put its long lists into a file of the image, and name that file in the config",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, options, f"{object_name(spec)}-config"),
        "immutable": True,
        "data": {CONFIG_NAME: text},
    }


def service(spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the headless Service: DNS names of the pods, also before they are ready.

    No pod is ready before the rendezvous, which needs the names.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec, options),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {_JOB_NAME_LABEL: object_name(spec)},
            "ports": [{"name": "rdzv", "port": RDZV_PORT}],
        },
    }


def network_policy(spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the NetworkPolicy: the pods reach each other and DNS, and are reached by no others."""
    pods = {"matchLabels": {RUN_LABEL: labels(spec)[RUN_LABEL]}}
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        # Not the job's name: Volcano creates one of that name, and deletes it with every restart.
        "metadata": metadata(spec, options, f"{object_name(spec)}-pods"),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
            "egress": [{"to": [{"podSelector": pods}]}, {"ports": dns}],
        },
    }
