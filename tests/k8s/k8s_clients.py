"""The official client's doors to a cluster, for the cluster's own tests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from k8s_cluster import KubernetesCluster
from kubernetes import client, config


class Clients:
    """The official client's doors to one cluster."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.api = config.new_client_from_config(str(cluster.kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.batch = client.BatchV1Api(self.api)
        self.custom = client.CustomObjectsApi(self.api)


def words(error: pytest.ExceptionInfo[Any]) -> str:
    """The server's message."""
    return str(json.loads(error.value.body)["message"])


def names(found: Any) -> list[str]:
    return [item.metadata.name for item in found.items]


def send_patch(clients: Clients, path: str, kind: str, body: object) -> None:
    """A patch of a format that the client would not choose."""
    headers = {"Content-Type": f"application/{kind}+json", "Accept": "application/json"}
    clients.api.call_api(path, "PATCH", header_params=headers, body=body, response_types_map={200: "object"})
