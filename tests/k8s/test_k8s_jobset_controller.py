"""The JobSet controller behaves as documented; the test sets the state of the pods, no process runs.

https://jobset.sigs.k8s.io/docs/concepts/
"""

from __future__ import annotations

import pytest

from cluster.api.errors import ApiError
from cluster.api.store import Deletion
from cluster.harness.operator_manifests import job_set
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster
from cluster.objects import JOBS, SERVICES, Manifest, find_condition, is_true
from cluster.operators.jobset_children import JOB_SETS

KEY = "jobset.sigs.k8s.io/"


@pytest.fixture
def plane(control_plane: KubernetesCluster) -> KubernetesCluster:
    """A cluster with JobSet."""
    control_plane.install("jobset")
    return control_plane


def submit(plane: KubernetesCluster, manifest: Manifest, pods: int = 2) -> None:
    """Create a JobSet and wait for its pods."""
    plane.store.create(JOB_SETS, "default", manifest)
    wait_for_pods(plane, pods)


def wait_for_pods(plane: KubernetesCluster, count: int) -> None:
    """Wait until so many run on nodes."""

    def living() -> int:
        return sum(bool(pod.node) and not (pod.has_ended or pod.is_terminating) for pod in plane.pods())

    plane.wait_for(lambda: living() == count, f"{count} living pods", within_s=10)


def top(plane: KubernetesCluster) -> Manifest:
    """The current JobSet."""
    [found] = plane.objects(JOB_SETS)
    return found


def wait_condition(plane: KubernetesCluster, kind: str) -> Manifest:
    """Wait until the condition is true."""
    plane.wait_for(lambda: is_true(top(plane), kind), f"{kind}: {top(plane).get('status')}", within_s=10)
    found = find_condition(top(plane), kind)
    assert found is not None
    return found


def end_all(plane: KubernetesCluster, code: int = 0) -> None:
    """End every pod that is on a node and has not ended."""
    for pod in plane.pods():
        if pod.node and not pod.has_ended:
            plane.manual_kubelet.end(pod, code)


def test_it_creates_its_jobs_and_their_service(plane: KubernetesCluster) -> None:
    submit(plane, job_set(jobs=2), pods=4)
    jobs = plane.objects(JOBS)
    assert [one["metadata"]["name"] for one in jobs] == ["train-node-0", "train-node-1"]
    labels = jobs[1]["metadata"]["labels"]
    assert labels == jobs[1]["metadata"]["annotations"]
    assert labels.items() <= jobs[1]["spec"]["template"]["metadata"]["labels"].items()
    expected = {
        "jobset-name": "train",
        "jobset-uid": top(plane)["metadata"]["uid"],
        "replicatedjob-name": "node",
        "replicatedjob-replicas": "2",
        "job-index": "1",
        "job-global-index": "1",
        "restart-attempt": "0",
    }
    assert {f"{KEY}{word}": value for word, value in expected.items()}.items() <= labels.items()
    [owner] = jobs[1]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("JobSet", "train", True)
    [service] = plane.objects(SERVICES)
    assert service["metadata"]["name"] == "train"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {f"{KEY}jobset-name": "train"}
    names = sorted(
        (pod.manifest["spec"]["hostname"], pod.manifest["spec"]["subdomain"]) for pod in plane.pods()
    )
    assert names == [(f"train-node-{job}-{pod}", "train") for job in (0, 1) for pod in (0, 1)]


def test_a_subdomain_names_the_service(plane: KubernetesCluster) -> None:
    submit(plane, job_set(network={"subdomain": "here", "enableDNSHostnames": True}))
    assert [one["metadata"]["name"] for one in plane.objects(SERVICES)] == ["here"]
    assert {pod.manifest["spec"]["subdomain"] for pod in plane.pods()} == {"here"}


def test_without_host_names_there_is_no_service(plane: KubernetesCluster) -> None:
    submit(plane, job_set(network={"enableDNSHostnames": False}))
    assert not plane.objects(SERVICES)


def test_it_is_completed_when_all_its_jobs_are(plane: KubernetesCluster) -> None:
    submit(plane, job_set(jobs=2), pods=4)
    first = [pod for pod in plane.pods() if pod.name.startswith("train-node-0-")]
    for pod in first:
        plane.manual_kubelet.end(pod)
    counts = {"name": "node", "ready": 0, "succeeded": 1, "failed": 0, "active": 1, "suspended": 0}
    plane.wait_for(lambda: top(plane)["status"]["replicatedJobsStatus"] == [counts], "one has succeeded")
    assert not is_true(top(plane), "Completed")
    end_all(plane)
    assert wait_condition(plane, "Completed")["reason"] == "AllJobsCompleted"
    assert top(plane)["status"]["terminalState"] == "Completed"
    assert len(plane.objects(JOBS)) == 2, "the finished Jobs stay"


def test_after_a_failed_job_all_are_recreated_once_all_are_gone(plane: KubernetesCluster) -> None:
    submit(plane, job_set(jobs=2), pods=4)
    before = {one["metadata"]["uid"] for one in plane.objects(JOBS)}
    plane.manual_kubelet.end(plane.pods()[0], 3)
    plane.wait_for(lambda: plane.phases().count("Terminating") == 1, "the failed Job's other pod is to go")

    def all_new() -> bool:
        for pod in plane.pods():
            if pod.is_terminating:
                plane.manual_kubelet.end(pod, 79)
        return before.isdisjoint(one["metadata"]["uid"] for one in plane.objects(JOBS))

    plane.wait_for(all_new, "all are new")
    wait_for_pods(plane, 4)
    assert top(plane)["status"]["restarts"] == 1
    attempts = {one["metadata"]["labels"][f"{KEY}restart-attempt"] for one in plane.objects(JOBS)}
    assert attempts == {"1"}
    assert top(plane)["status"]["restartsCountTowardsMax"] == 1
    assert find_condition(top(plane), "Restarting") is not None
    assert plane.events("RestartJobSetFailurePolicyAction")


def test_blocking_recreate_waits_until_all_old_jobs_are_gone(plane: KubernetesCluster) -> None:
    submit(plane, job_set(jobs=2), pods=4)
    slow = next(pod for pod in plane.pods() if pod.name.startswith("train-node-1-0"))
    for pod in plane.pods():
        if pod.uid != slow.uid:
            plane.manual_kubelet.end(pod, 3)
    plane.wait_for(lambda: top(plane)["status"].get("restarts") == 1, "the restart")
    plane.wait_for(lambda: [pod.uid for pod in plane.pods()] == [slow.uid], "one is left")
    with pytest.raises(AssertionError, match="not within"):
        plane.wait_for(lambda: len(plane.pods()) > 1, "a pod too early", within_s=0.4)
    plane.manual_kubelet.end(slow, 79)
    wait_for_pods(plane, 4)


def test_recreate_does_not_wait(plane: KubernetesCluster) -> None:
    """A Job of the new start is created as soon as the old one of its name is gone."""
    manifest = job_set(jobs=2)
    manifest["spec"]["failurePolicy"]["restartStrategy"] = "Recreate"
    submit(plane, manifest, pods=4)
    before = {pod.uid for pod in plane.pods()}
    slow = next(pod for pod in plane.pods() if pod.name.startswith("train-node-1-0"))
    for pod in plane.pods():
        if pod.uid != slow.uid:
            plane.manual_kubelet.end(pod, 3)
    plane.wait_for(lambda: len({pod.uid for pod in plane.pods()} - before) == 2, "two new ones beside it")
    assert slow.uid in [pod.uid for pod in plane.pods()]


def test_it_fails_when_its_restarts_are_used_up(plane: KubernetesCluster) -> None:
    submit(plane, job_set(max_restarts=1))
    for _ in range(2):
        wait_for_pods(plane, 2)
        end_all(plane, 3)
        plane.wait_for(lambda: all(pod.has_ended for pod in plane.pods()) or not plane.pods(), "all ended")
    failed = wait_condition(plane, "Failed")
    assert failed["reason"] == "ReachedMaxRestarts"
    assert failed["message"].endswith("(first failed job: train-node-0)")
    assert len(plane.objects(JOBS)) == 1
    assert plane.pods()[0].exit_code == 3, "the failed Job and what has ended of it stay"


def test_a_rule_that_matches_fails_it_at_once(plane: KubernetesCluster) -> None:
    submit(plane, job_set(max_restarts=5))
    end_all(plane, 78)
    assert wait_condition(plane, "Failed")["reason"] == "FailJobSetFailurePolicyAction"
    assert "restarts" not in top(plane)["status"]


def test_a_restart_that_does_not_count(plane: KubernetesCluster) -> None:
    manifest = job_set(max_restarts=0)
    [rule] = manifest["spec"]["failurePolicy"]["rules"]
    rule["action"] = "RestartJobSetAndIgnoreMaxRestarts"
    submit(plane, manifest)
    end_all(plane, 78)
    plane.wait_for(lambda: top(plane)["status"].get("restarts") == 1, "the restart")
    assert top(plane)["status"]["restartsCountTowardsMax"] == 0
    wait_for_pods(plane, 2)


def test_without_a_policy_a_failed_job_fails_it(plane: KubernetesCluster) -> None:
    manifest = job_set(jobs=2)
    del manifest["spec"]["failurePolicy"]
    submit(plane, manifest, pods=4)
    plane.manual_kubelet.end(plane.pods()[0], 3)
    plane.manual_kubelet.end(plane.pods()[1], 3)
    assert wait_condition(plane, "Failed")["reason"] == "FailedJobs"
    plane.wait_for(lambda: plane.phases().count("Terminating") == 2, "the Job that is active goes")


def test_suspend_deletes_the_pods_and_resume_creates_them(plane: KubernetesCluster) -> None:
    plane.store.create(JOB_SETS, "default", job_set(suspend=True))
    assert wait_condition(plane, "Suspended")["reason"] == "SuspendedJobs"
    assert [one["spec"]["suspend"] for one in plane.objects(JOBS)] == [True]
    assert not plane.pods()

    def suspend(value: bool) -> None:
        def change(obj: Manifest) -> None:
            obj["spec"]["suspend"] = value
            template = obj["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
            template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-2"}

        plane.store.update(JOB_SETS, "default", "train", change)

    suspend(False)
    wait_for_pods(plane, 2)
    assert {pod.node for pod in plane.pods()} == {"node-2"}, "what Kueue has changed meanwhile counts"
    plane.wait_for(lambda: not is_true(top(plane), "Suspended"), "no longer suspended")
    suspend(True)
    plane.wait_phases("Terminating", "Terminating")
    assert is_true(top(plane), "Suspended")


@pytest.mark.parametrize("control_plane", [ClusterSettings(ttl_scale=0.01)], indirect=True)
def test_after_its_ttl_nothing_is_left(plane: KubernetesCluster) -> None:
    submit(plane, job_set(ttlSecondsAfterFinished=30))
    end_all(plane)
    plane.wait_for(lambda: not plane.objects(JOB_SETS), "it is gone")
    plane.wait_for(lambda: not (plane.pods() or plane.objects(JOBS) or plane.objects(SERVICES)), "nothing")


def test_deleted_in_the_foreground_it_is_removed_last(plane: KubernetesCluster) -> None:
    submit(plane, job_set())
    plane.store.delete(JOB_SETS, "default", "train", Deletion(policy="Foreground"))
    plane.wait_phases("Terminating", "Terminating")
    assert plane.objects(JOB_SETS)
    end_all(plane, 75)
    plane.wait_for(lambda: not plane.objects(JOB_SETS), "it is gone")
    assert not any((plane.pods(), plane.objects(JOBS), plane.objects(SERVICES)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec.update(network={"subdomain": "No"}), "subdomain"),
        (lambda spec: spec["failurePolicy"]["rules"][0].update(onJobFailureReasons=["Any"]), "'Any'"),
        (lambda spec: spec["failurePolicy"]["rules"][0].update(name="a-b"), "'a-b'"),
        (lambda spec: spec["replicatedJobs"][0].update(name="n" * 60), "not DNS labels"),
    ],
    ids=["subdomain", "reason", "rule's name", "long name"],
)
def test_its_webhook_refuses(plane: KubernetesCluster, change: object, said: str) -> None:
    manifest = job_set()
    change(manifest["spec"])  # type: ignore[operator]
    with pytest.raises(ApiError, match=said) as refused:
        plane.store.create(JOB_SETS, "default", manifest)
    assert refused.value.code == 422
