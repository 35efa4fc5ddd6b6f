"""What lies beside the job itself: its config, its address, and who may talk to its pods."""

from __future__ import annotations

from typing import Any

from dist_train.errors import ConfigError
from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.names import RUN_LABEL, labels, object_name
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.manifest.places import CONFIG_NAME, RDZV_PORT

# The API server takes 1 MiB of data in all; the names count too.
_CONFIG_LIMIT = 2**20 - 1024
# The Job controller writes it on its pods.
_JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


def metadata(spec: JobSpec, options: Options, name: str | None = None) -> dict[str, Any]:
    """Name, namespace and the run's labels, as every object has them."""
    return {"name": name or object_name(spec), "namespace": options.namespace, "labels": labels(spec)}


def config_map(spec: JobSpec, options: Options) -> dict[str, Any]:
    """The resolved config; immutable, so that no restart reads another one."""
    text = spec.config_yaml or ""
    if (size := len(text.encode())) > _CONFIG_LIMIT:
        raise ConfigError(
            f"the config has {size} bytes; a ConfigMap holds {_CONFIG_LIMIT}",
            mend="put its long lists into a file of the image, and name that file in the config",
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(spec, options, f"{object_name(spec)}-config"),
        "immutable": True,
        "data": {CONFIG_NAME: text},
    }


def service(spec: JobSpec, options: Options) -> dict[str, Any]:
    """Headless: gives each pod its name in DNS, before it is ready, for nobody is until all have met."""
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
    """The pods reach each other and DNS, and nobody else reaches them."""
    pods = {"matchLabels": {RUN_LABEL: labels(spec)[RUN_LABEL]}}
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        # Volcano makes one of the job's own name, and deletes that with every restart.
        "metadata": metadata(spec, options, f"{object_name(spec)}-pods"),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
            "egress": [{"to": [{"podSelector": pods}]}, {"ports": dns}],
        },
    }
