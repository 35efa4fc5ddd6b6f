"""Watches, error responses and outages of the emulated API server, with the official client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import watch
from kubernetes.client.rest import ApiException
from urllib3.exceptions import MaxRetryError

from cluster.api.errors import ApiError
from cluster.harness.clients import Clients, error_message, names
from cluster.harness.manifests import config_map, container, job, pod
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster
from cluster.objects import PODS

ONE = pytest.mark.parametrize("control_plane", [ClusterSettings(nodes=1)], indirect=True)


# Watches.


def watched(count: int, function: Callable[..., Any], **words: object) -> list[tuple[str, str]]:
    """Type and name of the next events of the client's Watch."""
    stream, events = watch.Watch(), []
    for event in stream.stream(function, "default", timeout_seconds=10, **words):
        events.append((event["type"], event["object"].metadata.name))
        if len(events) == count:
            stream.stop()
    return events


def test_a_watch_continues_from_a_lists_version(clients: Clients) -> None:
    clients.core.create_namespaced_config_map("default", config_map("old"))
    version = clients.core.list_namespaced_config_map("default").metadata.resource_version
    clients.core.create_namespaced_config_map("default", config_map("new"))
    clients.core.patch_namespaced_config_map("old", "default", {"metadata": {"labels": {"a": "b"}}})
    clients.core.delete_namespaced_config_map("new", "default")
    events = watched(3, clients.core.list_namespaced_config_map, resource_version=version)
    assert events == [("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "new")]


def test_a_watch_without_a_version_starts_with_the_existing_objects(clients: Clients) -> None:
    for name in ("a", "b"):
        clients.core.create_namespaced_config_map("default", config_map(name))
    events = watched(2, clients.core.list_namespaced_config_map)
    assert events == [("ADDED", "a"), ("ADDED", "b")]


def test_a_watch_with_a_selector_sees_objects_come_and_go(clients: Clients) -> None:
    clients.core.create_namespaced_config_map("default", config_map("a"))
    version = clients.core.list_namespaced_config_map("default").metadata.resource_version
    for value in ("x", "y", "x"):
        body = {"metadata": {"labels": {"run": value}}}
        clients.core.patch_namespaced_config_map("a", "default", body)
    words = {"resource_version": version, "label_selector": "run=x"}
    events = watched(3, clients.core.list_namespaced_config_map, **words)
    assert [kind for kind, _ in events] == ["ADDED", "DELETED", "ADDED"]


def test_a_watch_ends_after_its_time(clients: Clients) -> None:
    stream = watch.Watch().stream(clients.core.list_namespaced_config_map, "default", timeout_seconds=0.1)
    assert list(stream) == []


def test_an_expired_version_is_410(clients: Clients, control_plane: KubernetesCluster) -> None:
    version = clients.core.list_namespaced_config_map("default").metadata.resource_version
    control_plane.expire()
    with pytest.raises(ApiException) as error:
        watched(1, clients.core.list_namespaced_config_map, resource_version=version)
    assert error.value.status == 410
    fresh = clients.core.list_namespaced_config_map("default").metadata.resource_version
    clients.core.create_namespaced_config_map("default", config_map("a"))
    events = watched(1, clients.core.list_namespaced_config_map, resource_version=fresh)
    assert events == [("ADDED", "a")]


# Refusals and outages.


def test_a_missing_right_is_named(clients: Clients, control_plane: KubernetesCluster) -> None:
    control_plane.forbid("create", "jobs")
    with pytest.raises(ApiException) as error:
        clients.batch.create_namespaced_job("default", job("train"))
    assert error.value.status == 403
    assert error_message(error) == (
        'jobs.batch is forbidden: User "system:serviceaccount:default:researcher" cannot create resource '
        '"jobs" in API group "batch" in the namespace "default"'
    )
    assert clients.batch.list_namespaced_job("default").items == []
    assert control_plane.sent("POST", "jobs") == [job("train")]


def test_a_failure_can_be_temporary(clients: Clients, control_plane: KubernetesCluster) -> None:
    control_plane.fail("list", "pods", ApiError(500, "InternalError", "etcd is slow"), times=1)
    with pytest.raises(ApiException, match="etcd is slow"):
        clients.core.list_namespaced_pod("default")
    assert clients.core.list_namespaced_pod("default").items == []


def test_warnings_are_headers_of_the_response(clients: Clients, control_plane: KubernetesCluster) -> None:
    control_plane.warn("create", "jobs", "metadata.name is odd")
    made, code, headers = clients.batch.create_namespaced_job_with_http_info("default", job("train"))
    assert (made.metadata.name, code) == ("train", 201)
    assert headers["Warning"] == '299 - "metadata.name is odd"'


def test_the_restricted_level_refuses_pods_and_warns_for_jobs(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    control_plane.enforce_restricted()
    _, code, headers = clients.batch.create_namespaced_job_with_http_info("default", job("train"))
    assert code == 201
    assert "would violate PodSecurity" in headers["Warning"]
    with pytest.raises(ApiException, match="allowPrivilegeEscalation != false") as error:
        clients.core.create_namespaced_pod("default", pod("a"))
    assert error.value.status == 403
    secure = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    allowed = {**pod("b"), "spec": {"containers": [container("true", securityContext=secure)]}}
    assert clients.core.create_namespaced_pod("default", allowed).metadata.name == "b"


@ONE
def test_the_server_restarts_with_its_objects(clients: Clients, control_plane: KubernetesCluster) -> None:
    clients.core.create_namespaced_config_map("default", config_map("kept"))
    seen = watch.Watch().stream(clients.core.list_namespaced_config_map, "default")
    assert next(seen)["object"].metadata.name == "kept"
    port = control_plane.api.port
    control_plane.down()
    with pytest.raises(Exception, match=r"Connection|refused|closed|IncompleteRead"):
        next(seen)
    with pytest.raises(MaxRetryError, match="refused"):
        clients.core.list_namespaced_config_map("default")
    control_plane.up()
    assert control_plane.api.port == port
    assert names(clients.core.list_namespaced_config_map("default")) == ["kept"]


def test_while_the_server_is_down_controllers_do_nothing(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    clients.batch.create_namespaced_job("default", job("train"))
    control_plane.wait_for(lambda: len(control_plane.pods()) == 2, "two pods")
    control_plane.down()
    lost = control_plane.pod(0)
    control_plane.store.update(PODS, "default", lost.name, lambda obj: obj["status"].update(phase="Failed"))
    with pytest.raises(AssertionError, match="not within"):
        control_plane.wait_for(lambda: len(control_plane.pods()) > 2, "a replacement", within_s=0.6)
    control_plane.up()
    control_plane.wait_for(lambda: len(control_plane.pods()) > 2, "a replacement")


def test_requests_are_recorded(clients: Clients, control_plane: KubernetesCluster) -> None:
    clients.core.create_namespaced_config_map("default", config_map("a", text="ä"))
    clients.core.read_namespaced_config_map("a", "default")
    first, second = control_plane.requests
    path = "/api/v1/namespaces/default/configmaps"
    assert (first.method, first.path, first.code) == ("POST", path, 201)
    assert first.manifest == config_map("a", text="ä")
    assert (second.method, second.path, second.body) == ("GET", f"{path}/a", b"")
