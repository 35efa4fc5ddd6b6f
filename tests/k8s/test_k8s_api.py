"""The emulated API server and the official client: objects, changes, deletion."""

from __future__ import annotations

import pytest
from kubernetes import client
from kubernetes.client.rest import ApiException

from cluster.harness.clients import Clients, error_message, names, send_patch
from cluster.harness.manifests import config_map, container, job, pod, service
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import CONFIG_MAPS, JOBS, SERVICES, Manifest

JOBSET = ("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")


# Objects.


def test_a_created_object_has_the_servers_fields(clients: Clients) -> None:
    made = clients.batch.create_namespaced_job("default", job("train"))
    assert len(made.metadata.uid) == 36
    assert int(made.metadata.resource_version) > 0
    assert made.metadata.creation_timestamp is not None
    assert made.spec.pod_replacement_policy == "Failed"
    assert made.spec.template.metadata.labels["batch.kubernetes.io/job-name"] == "train"
    assert clients.batch.read_namespaced_job("train", "default").metadata.uid == made.metadata.uid


def test_a_second_object_of_a_name_is_a_conflict(clients: Clients) -> None:
    clients.batch.create_namespaced_job("default", job("train"))
    with pytest.raises(ApiException, match="AlreadyExists") as error:
        clients.batch.create_namespaced_job("default", job("train"))
    assert (error.value.status, error_message(error)) == (409, 'jobs.batch "train" already exists')


def test_a_generated_name_has_five_random_characters(clients: Clients) -> None:
    asked = {**pod(), "metadata": {"generateName": "worker-"}}
    name = clients.core.create_namespaced_pod("default", asked).metadata.name
    assert name.startswith("worker-")
    assert len(name) == len("worker-") + 5


def test_a_missing_object_is_404(clients: Clients, control_plane: KubernetesCluster) -> None:
    with pytest.raises(ApiException) as error:
        clients.batch.read_namespaced_job("nothing", "default")
    assert (error.value.status, error_message(error)) == (404, 'jobs.batch "nothing" not found')
    with pytest.raises(ApiException) as error:
        clients.batch.create_namespaced_job("nowhere", job("train"))
    assert (error.value.status, error_message(error)) == (404, 'namespaces "nowhere" not found')
    assert clients.batch.list_namespaced_job("nowhere").items == []
    with pytest.raises(ApiException) as error:
        clients.custom.list_namespaced_custom_object(*JOBSET)
    assert (error.value.status, error.value.body) == (404, "404 page not found\n")
    control_plane.install("jobset")
    assert clients.custom.list_namespaced_custom_object(*JOBSET)["items"] == []


def test_namespaces_are_objects_too(clients: Clients) -> None:
    clients.core.create_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    assert names(clients.core.list_namespace()) == ["default", "kube-system", "team"]
    clients.core.create_namespaced_config_map("team", config_map("a"))
    clients.core.create_namespaced_config_map("default", config_map("b"))
    assert names(clients.core.list_namespaced_config_map("team")) == ["a"]
    assert names(clients.core.list_config_map_for_all_namespaces()) == ["a", "b"]


def test_discovery_lists_what_is_served(clients: Clients, control_plane: KubernetesCluster) -> None:
    control_plane.install("jobset")
    batch = client.BatchV1Api(clients.api).get_api_resources()
    assert "jobs" in [resource.name for resource in batch.resources]
    core = client.CoreV1Api(clients.api).get_api_resources()
    assert core.group_version == "v1"
    assert {"pods", "services"} <= {resource.name for resource in core.resources}
    assert "jobset.x-k8s.io" in [
        group.name for group in client.ApisApi(clients.api).get_api_versions().groups
    ]
    assert client.VersionApi(clients.api).get_code().git_version == "v1.34.0"


def test_a_dry_run_creates_nothing(clients: Clients) -> None:
    made = clients.batch.create_namespaced_job("default", job("train"), dry_run="All")
    assert made.spec.completion_mode == "Indexed"
    assert clients.batch.list_namespaced_job("default").items == []


# Selectors.


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=x", ["a", "b"]),
        ("app==x,tier=1", ["a"]),
        ("app!=x", ["c", "d"]),
        ("tier in (1, 2)", ["a", "b"]),
        ("tier notin (1)", ["b", "c", "d"]),
        ("tier", ["a", "b"]),
        ("!app", ["d"]),
        ("app=x,tier in (2,3)", ["b"]),
    ],
)
def test_labels_select(clients: Clients, selector: str, expected: list[str]) -> None:
    for made in (pod("a", app="x", tier="1"), pod("b", app="x", tier="2"), pod("c", app="y"), pod("d")):
        clients.core.create_namespaced_pod("default", made)
    assert names(clients.core.list_namespaced_pod("default", label_selector=selector)) == expected


def test_fields_select(clients: Clients, control_plane: KubernetesCluster) -> None:
    for name in ("a", "b"):
        clients.core.create_namespaced_pod("default", pod(name))
    listed = clients.core.list_namespaced_pod("default", field_selector="metadata.name=b")
    assert names(listed) == ["b"]
    control_plane.wait_for(lambda: len(control_plane.events("Scheduled")) == 2, "both have a node")
    found = clients.core.list_namespaced_event("default", field_selector="involvedObject.name=a")
    assert {event.reason for event in found.items} == {"Scheduled"}
    assert names(clients.core.list_namespaced_pod("default", field_selector="status.phase!=Pending")) == []


# Changes.


def test_an_owner_is_added_by_each_patch_format(clients: Clients) -> None:
    owner = clients.batch.create_namespaced_job("default", job("train"))
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner.metadata.uid}
    other = {**ref, "name": "other", "uid": clients.core.read_namespace("default").metadata.uid}
    clients.core.create_namespaced_service("default", service())

    def patch(body: object) -> list[str]:
        said = clients.core.patch_namespaced_service("train", "default", body)
        return [one.name for one in said.metadata.owner_references]

    # The client sends dictionaries as strategic merge patches: lists of owners are merged by uid.
    assert patch({"metadata": {"ownerReferences": [ref]}}) == ["train"]
    assert patch({"metadata": {"ownerReferences": [ref]}}) == ["train"]
    assert patch({"metadata": {"ownerReferences": [other]}}) == ["train", "other"]
    assert patch({"metadata": {"ownerReferences": [{**other, "$patch": "delete"}]}}) == ["train"]
    step = {"op": "add", "path": "/metadata/ownerReferences/-", "value": other}
    assert patch([step]) == ["train", "other"]


def test_a_merge_patch_replaces_lists_and_removes_nulls(clients: Clients) -> None:
    clients.core.create_namespaced_pod("default", pod("a", app="x", tier="1"))
    path = "/api/v1/namespaces/default/pods/a"
    # Owners that exist: with invented ones the garbage collector would delete the pod.
    owners = [clients.core.read_namespace(name).metadata for name in ("default", "kube-system")]
    for owner in owners:
        ref = {"apiVersion": "v1", "kind": "Namespace", "name": owner.name, "uid": owner.uid}
        labels = {"tier": None, "new": "1"}
        send_patch(clients, path, "merge-patch", {"metadata": {"labels": labels, "ownerReferences": [ref]}})
    metadata = clients.core.read_namespaced_pod("a", "default").metadata
    assert metadata.labels == {"app": "x", "new": "1"}
    assert [one.uid for one in metadata.owner_references] == [owners[-1].uid]


def test_custom_kinds_take_no_strategic_patch(clients: Clients, control_plane: KubernetesCluster) -> None:
    control_plane.install("jobset")
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}}
    clients.custom.create_namespaced_custom_object(*JOBSET, made)
    path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/x"
    with pytest.raises(ApiException) as error:
        send_patch(clients, path, "strategic-merge-patch", {"metadata": {"labels": {"a": "b"}}})
    assert error.value.status == 415


def test_an_outdated_version_is_a_conflict(clients: Clients) -> None:
    old = clients.core.create_namespaced_pod("default", pod("a"))
    clients.core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"changed": "yes"}}})
    old.metadata.labels = {"changed": "no"}
    with pytest.raises(ApiException, match="the object has been modified") as error:
        clients.core.replace_namespaced_pod("a", "default", old)
    assert error.value.status == 409


def test_status_is_a_subresource(clients: Clients, control_plane: KubernetesCluster) -> None:
    clients.core.create_namespaced_pod("default", pod("a"))
    body = {"metadata": {"labels": {"seen": "yes"}}, "status": {"phase": "Failed"}}
    assert clients.core.patch_namespaced_pod("a", "default", body).status.phase == "Pending"
    assert clients.core.patch_namespaced_pod_status("a", "default", body).status.phase == "Failed"
    assert control_plane.pods()[0].manifest["metadata"]["labels"] == {"seen": "yes"}


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({**job(), "spec": {**job()["spec"], "backofLimit": 1}}, 400, "strict decoding error"),
        (job("train", pod={"restartPolicy": "Always"}), 422, 'Unsupported value: "Always"'),
        (job("train", pod={"restartPolicy": "OnFailure"}), 422, 'only supported with restartPolicy "Never"'),
        (job("t" * 62), 422, "will not be a valid host name"),
        (job("Train"), 422, "not a DNS name"),
        (
            job("train", podReplacementPolicy="TerminatingOrFailed"),
            422,
            'only "Failed" with a podFailurePolicy',
        ),
        (
            job("train", containers=[container("x", volumeMounts=[{"name": "v", "mountPath": "/v"}])]),
            422,
            "Not found",
        ),
        (
            job(
                "train",
                containers=[container("x", resources={"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}})],
            ),
            422,
            "must be at most the cpu limit",
        ),
        ({**job(), "metadata": {"name": "train", "labels": {"run": "a b"}}}, 422, "a valid label"),
        ({**job(), "apiVersion": "batch/v2"}, 400, ""),
    ],
)
def test_bad_jobs_are_refused_with_reasons(clients: Clients, body: Manifest, code: int, said: str) -> None:
    with pytest.raises(ApiException) as error:
        clients.batch.create_namespaced_job("default", body)
    assert error.value.status == code
    assert said in error_message(error)


def test_immutable_fields_cannot_change(clients: Clients) -> None:
    clients.core.create_namespaced_config_map("default", config_map("settings", a="1"))
    with pytest.raises(ApiException, match="immutable") as error:
        clients.core.patch_namespaced_config_map("settings", "default", {"data": {"a": "2"}})
    assert error.value.status == 422
    clients.core.patch_namespaced_config_map("settings", "default", {"metadata": {"labels": {"a": "b"}}})
    clients.batch.create_namespaced_job("default", job("train"))
    template = {"spec": {"template": {"metadata": {"labels": {"new": "yes"}}}}}
    with pytest.raises(ApiException, match=r"spec\.template") as error:
        clients.batch.patch_namespaced_job("train", "default", template)
    assert error.value.status == 422


# Deletion.


def test_a_job_deleted_in_the_background_deletes_its_pods(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    clients.batch.create_namespaced_job("default", job("train"))
    control_plane.wait_for(lambda: len(control_plane.pods()) == 2, "two pods")
    clients.batch.delete_namespaced_job("train", "default", propagation_policy="Background")
    assert control_plane.objects(JOBS) == []
    control_plane.wait_for(lambda: all(p.is_terminating for p in control_plane.pods()), "pods are deleted")


def test_a_job_deleted_without_a_policy_leaves_its_pods_and_warns(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    clients.batch.create_namespaced_job("default", job("train"))
    control_plane.wait_for(lambda: len(control_plane.pods()) == 2, "two pods")
    _, _, headers = clients.batch.delete_namespaced_job_with_http_info("train", "default")
    assert "child pods are preserved by default" in headers["Warning"]
    control_plane.wait_for(lambda: control_plane.objects(JOBS) == [], "the Job goes")
    left = [pod.manifest["metadata"] for pod in control_plane.pods()]
    assert len(left) == 2
    assert not any(metadata.get("ownerReferences") for metadata in left)
    assert not any("deletionTimestamp" in metadata for metadata in left)


def test_a_job_deleted_in_the_foreground_is_removed_last(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    clients.batch.create_namespaced_job("default", job("train"))
    control_plane.wait_for(lambda: len(control_plane.pods()) == 2, "two pods")
    clients.batch.delete_namespaced_job("train", "default", propagation_policy="Foreground")
    control_plane.wait_for(lambda: all(p.is_terminating for p in control_plane.pods()), "pods are deleted")
    assert control_plane.job()["metadata"]["finalizers"] == ["foregroundDeletion"]
    for left in control_plane.pods():
        control_plane.delete(left, grace_s=0)
    control_plane.wait_for(lambda: control_plane.objects(JOBS) == [], "the Job goes")


def test_dependents_are_deleted_with_their_owner(clients: Clients, control_plane: KubernetesCluster) -> None:
    owner = clients.batch.create_namespaced_job("default", job("train", suspend=True)).metadata
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": owner.name, "uid": owner.uid}
    made = service()
    made["metadata"]["ownerReferences"] = [ref]
    clients.core.create_namespaced_service("default", made)
    clients.core.create_namespaced_config_map("default", config_map())
    clients.batch.delete_namespaced_job("train", "default", propagation_policy="Background")
    control_plane.wait_for(lambda: control_plane.objects(SERVICES) == [], "the Service goes")
    assert len(control_plane.objects(CONFIG_MAPS)) == 1


def test_a_collection_is_deleted_by_label_and_a_uid_must_match(clients: Clients) -> None:
    for name in ("a", "b"):
        clients.core.create_namespaced_config_map(
            "default", {**config_map(name), "metadata": {"name": name, "labels": {"run": name}}}
        )
    clients.core.delete_collection_namespaced_config_map("default", label_selector="run=a")
    assert names(clients.core.list_namespaced_config_map("default")) == ["b"]
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    with pytest.raises(ApiException, match="Precondition failed") as error:
        clients.core.delete_namespaced_config_map("b", "default", body=wrong)
    assert error.value.status == 409


def test_a_pod_with_a_node_is_deleted_with_its_grace(
    clients: Clients, control_plane: KubernetesCluster
) -> None:
    clients.core.create_namespaced_pod("default", pod("a"))
    control_plane.wait_for(lambda: control_plane.pods()[0].node != "", "it has a node")
    said = clients.core.delete_namespaced_pod("a", "default", grace_period_seconds=7)
    assert said.metadata.deletion_grace_period_seconds == 7
    assert control_plane.phases() == ["Terminating"]
    clients.core.delete_namespaced_pod("a", "default", grace_period_seconds=0)
    assert control_plane.pods() == []
