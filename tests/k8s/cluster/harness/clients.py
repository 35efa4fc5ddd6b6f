"""Official Python client of a cluster, for the emulator's own tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client, config

from cluster.kubernetes_cluster import KubernetesCluster


class Clients:
    """API objects of the official client for one cluster."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.api = config.new_client_from_config(str(cluster.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.custom = client.CustomObjectsApi(self.api)


def error_message(error: pytest.ExceptionInfo[Any]) -> str:
    """Message of the server's Status."""
    return str(json.loads(error.value.body)["message"])


def names(found: Any) -> list[str]:
    """Names of the objects of a list."""
    return [item.metadata.name for item in found.items]


def send_patch(clients: Clients, path: str, kind: str, body: object) -> None:
    """Send a patch of a format that the client would not choose."""
    headers = {"Content-Type": f"application/{kind}+json", "Accept": "application/json"}
    clients.api.call_api(path, "PATCH", header_params=headers, body=body, response_types_map={200: "object"})
