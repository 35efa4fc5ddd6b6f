"""The Job controller behaves as documented; the test sets the state of the pods, no process runs.

https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster.controllers.job_pods import intervals, parsed_intervals
from cluster.harness.manifests import POLICY, container, job
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster
from cluster.objects import JOBS, PODS, Manifest, find_condition, is_true, set_condition
from cluster.pod import Pod

QUICK = ClusterSettings(back_off_s=0.05)
quick = pytest.mark.parametrize("control_plane", [QUICK], indirect=True)


def submit(plane: KubernetesCluster, manifest: Manifest) -> None:
    """Create a Job and wait for its pods."""
    plane.store.create(JOBS, "default", manifest)
    wait_for_pods(plane, *range(manifest["spec"]["completions"]))


def wait_for_pods(plane: KubernetesCluster, *indexes: int) -> None:
    """Wait until these indexes have a pod on a node that is neither ended nor ending."""

    def living() -> list[int]:
        found = [pod for pod in plane.pods() if not pod.has_ended and not pod.is_terminating and pod.node]
        return sorted(pod.index for pod in found)

    plane.wait_for(lambda: living() == sorted(indexes), f"living pods of {indexes}", within_s=10)


def finish(plane: KubernetesCluster, index: int, code: int = 0, *conditions: str) -> Pod:
    """End the newest pod of the index, as its kubelet would; remove it if it was being deleted."""
    pod = plane.pod(index)

    def change(obj: Manifest) -> None:
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        obj["status"]["containerStatuses"] = [{"name": "main", "state": state}]
        for kind in conditions:
            set_condition(obj, kind, "True", "Test")
        obj["status"]["phase"] = "Failed" if code else "Succeeded"

    after = plane.store.update(PODS, "default", pod.name, change)
    if "deletionTimestamp" in after["metadata"]:
        plane.delete(pod, grace_s=0)
    return pod


def replaced(plane: KubernetesCluster, old: Pod) -> bool:
    """Whether its index has a newer pod."""
    return [pod.uid for pod in plane.pods() if pod.index == old.index][-1:] not in ([], [old.uid])


def stays(plane: KubernetesCluster, true: Callable[[], bool], for_s: float = 0.4) -> None:
    """Assert that it holds, also after a time in which the controller could act."""
    with pytest.raises(AssertionError, match="not within"):
        plane.wait_for(lambda: not true(), "a change that must not come", within_s=for_s)


# Indexed pods.


def test_an_indexed_pod_knows_its_index(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train"))
    pod = control_plane.pod(1)
    metadata, spec = pod.manifest["metadata"], pod.manifest["spec"]
    assert pod.name.startswith("train-1-")
    assert len(pod.name) == len("train-1-") + 5
    assert spec["hostname"] == "train-1"
    assert metadata["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"
    assert metadata["labels"]["batch.kubernetes.io/job-completion-index"] == "1"
    assert metadata["labels"]["batch.kubernetes.io/job-name"] == "train"
    assert metadata["labels"]["app"] == "train"
    assert metadata["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Job", "train", True)
    (variable,) = spec["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == path


def test_a_job_is_complete_when_every_index_has_succeeded(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train"))
    assert control_plane.job()["status"]["active"] == 2
    finish(control_plane, 1)
    control_plane.wait_for(lambda: control_plane.job()["status"].get("succeeded") == 1, "one succeeded")
    assert control_plane.job()["status"]["completedIndexes"] == "1"
    assert control_plane.job_result() == ""
    finish(control_plane, 0)
    control_plane.wait_job_result("Complete")
    status = control_plane.job()["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")
    assert "completionTime" in status
    assert "active" not in status
    assert not any(pod.manifest["metadata"].get("finalizers") for pod in control_plane.pods())
    assert control_plane.events("Completed") == ["Job completed"]


@pytest.mark.parametrize(
    ("indexes", "text"), [([], ""), ([3], "3"), ([0, 1], "0,1"), ([0, 2, 3, 4, 7], "0,2-4,7")]
)
def test_completed_indexes_are_intervals(indexes: list[int], text: str) -> None:
    assert intervals(indexes) == text
    assert parsed_intervals(text) == set(indexes)


# Failures.


@quick
@pytest.mark.parametrize(
    ("code", "conditions", "counts"),
    [(75, [], False), (79, [], False), (3, [], True), (137, [], True), (78, ["DisruptionTarget"], False)],
)
def test_a_pod_without_a_fatal_code_is_replaced(
    control_plane: KubernetesCluster, code: int, conditions: list[str], counts: bool
) -> None:
    submit(control_plane, job("train"))
    other = control_plane.pod(0)
    old = finish(control_plane, 1, code, *conditions)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    assert control_plane.job()["status"].get("failed", 0) == int(counts)
    assert control_plane.pod(0).uid == other.uid
    assert [pod.exit_code for pod in control_plane.pods() if pod.uid == old.uid] == [code]


@quick
@pytest.mark.parametrize("code", [2, 73, 76, 77, 78])
def test_a_fatal_code_fails_the_job_and_ends_the_others(control_plane: KubernetesCluster, code: int) -> None:
    submit(control_plane, job("train"))
    root_cause = finish(control_plane, 1, code)
    control_plane.wait_phases("Terminating", "Failed")
    target = find_condition(control_plane.job(), "FailureTarget")
    said = f"Container main for pod default/{root_cause.name} failed with exit code {code}"
    assert target is not None
    assert target["message"] == f"{said} matching FailJob rule at index 1"
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/#terminal-job-conditions
    stays(control_plane, lambda: control_plane.job_result() == "")
    finish(control_plane, 0, 75)
    control_plane.wait_job_result("Failed: PodFailurePolicy")
    assert control_plane.job()["status"]["failed"] == 2
    assert [pod.name for pod in control_plane.pods()] == [root_cause.name]


@quick
def test_more_failures_than_the_limit_end_the_job(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train", backoff_limit=1))
    old = finish(control_plane, 0, 3)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    # Ignored ones do not count.
    old = finish(control_plane, 1, 75)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    finish(control_plane, 0, 3)
    control_plane.wait_for(lambda: control_plane.pod(1).is_terminating, "the other is ended")
    finish(control_plane, 1, 137)
    control_plane.wait_job_result("Failed: BackoffLimitExceeded")


@quick
@pytest.mark.parametrize(
    ("rule", "code", "fails"),
    [
        ({"operator": "In", "values": [5]}, 5, True),
        ({"operator": "In", "values": [5]}, 6, False),
        ({"operator": "NotIn", "values": [5]}, 6, True),
        ({"operator": "NotIn", "values": [5]}, 5, False),
        ({"operator": "In", "values": [5], "containerName": "main"}, 5, True),
        ({"operator": "In", "values": [5], "containerName": "side"}, 5, False),
    ],
)
def test_exit_codes_are_in_or_not_in_and_of_a_container(
    control_plane: KubernetesCluster, rule: Manifest, code: int, fails: bool
) -> None:
    policy = {"rules": [{"action": "FailJob", "onExitCodes": rule}]}
    both = [container("true"), {**container("true"), "name": "side"}]
    submit(control_plane, job("train", completions=1, policy=policy, containers=both))
    old = finish(control_plane, 0, code)
    if fails:
        control_plane.wait_job_result("Failed: PodFailurePolicy")
    else:
        control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    assert control_plane.job()["status"]["failed"] == 1


@quick
def test_the_first_matching_rule_decides(control_plane: KubernetesCluster) -> None:
    reverse = {"rules": list(reversed(POLICY["rules"]))}
    submit(control_plane, job("train", completions=1, policy=reverse))
    finish(control_plane, 0, 78, "DisruptionTarget")
    control_plane.wait_job_result("Failed: PodFailurePolicy")


@pytest.mark.parametrize("control_plane", [ClusterSettings(back_off_s=0.3)], indirect=True)
def test_the_back_off_doubles_with_each_failure_also_ignored_ones(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train", completions=1, backoff_limit=9))
    for expected, code in ((0.3, 3), (0.6, 75)):
        began = time.monotonic()
        old = finish(control_plane, 0, code)
        control_plane.wait_for(lambda old=old: replaced(control_plane, old), "a replacement")  # type: ignore[misc]
        assert time.monotonic() - began >= expected


@pytest.mark.parametrize("control_plane", [ClusterSettings(back_off_s=0.3)], indirect=True)
def test_pods_that_fail_together_are_recreated_together(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train"))
    began = time.monotonic()
    with control_plane.store.lock:
        old = [finish(control_plane, 0, 3), finish(control_plane, 1, 79)]
    control_plane.wait_for(lambda: all(replaced(control_plane, pod) for pod in old), "both replaced")
    assert time.monotonic() - began >= 0.6
    assert control_plane.job()["status"]["failed"] == 1


# Deletion.


@quick
def test_a_deleted_pod_is_replaced_only_after_it_has_ended(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train"))
    control_plane.delete(control_plane.pod(1))
    control_plane.wait_for(lambda: control_plane.job()["status"].get("terminating") == 1, "it is counted")
    stays(control_plane, lambda: control_plane.phases() == ["Pending", "Terminating"])
    old = finish(control_plane, 1, 75)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    assert control_plane.job()["status"].get("failed", 0) == 0
    assert len(control_plane.pods()) == 2


@quick
def test_without_a_failure_policy_a_deleted_pod_is_replaced_at_once(
    control_plane: KubernetesCluster,
) -> None:
    submit(control_plane, job("train", policy=None))
    old = control_plane.pod(1)
    control_plane.delete(old)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    assert control_plane.job()["status"]["failed"] == 1
    control_plane.wait_for(lambda: len(control_plane.pods()) == 3, "the old one still ends")


@quick
def test_force_alone_does_not_replace_a_pod_of_a_dead_node(control_plane: KubernetesCluster) -> None:
    """Its tracking finalizer is removed only at the phase Failed, which no kubelet reports here.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy: a pod that is being
    deleted is terminating until it is in a terminal phase.
    """
    submit(control_plane, job("train"))
    old = control_plane.pod(1)
    control_plane.lose_node(old.node)
    control_plane.delete(old, grace_s=0)
    stays(control_plane, lambda: control_plane.pod(1).uid == old.uid and control_plane.pod(1).is_terminating)
    control_plane.delete_node(old.node)
    control_plane.wait_for(lambda: replaced(control_plane, old), "a replacement")
    assert control_plane.job()["status"].get("failed", 0) == 0, "DisruptionTarget is ignored"


# Suspension, deadlines, time.


@quick
def test_a_suspended_job_has_no_pods_until_it_is_resumed(control_plane: KubernetesCluster) -> None:
    control_plane.store.create(JOBS, "default", job("train", suspend=True))
    control_plane.wait_for(lambda: is_true(control_plane.job(), "Suspended"), "it is suspended")
    assert control_plane.pods() == []
    assert "startTime" not in control_plane.job()["status"]
    suspend(control_plane, False)
    wait_for_pods(control_plane, 0, 1)
    assert "startTime" in control_plane.job()["status"]
    condition = find_condition(control_plane.job(), "Suspended")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "JobResumed")


@quick
def test_suspension_ends_running_pods_and_is_no_failure(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train"))
    suspend(control_plane, True)
    control_plane.wait_phases("Terminating", "Terminating")
    for index in (0, 1):
        finish(control_plane, index, 3)
    control_plane.wait_for(lambda: control_plane.pods() == [], "no pod is left")
    assert control_plane.job()["status"].get("failed", 0) == 0
    assert control_plane.job_result() == ""
    assert control_plane.events("Suspended") == ["Job suspended"]
    assert len(control_plane.events("SuccessfulDelete")) == 2


@quick
def test_the_deadline_of_a_job_starts_again_when_it_is_resumed(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train", activeDeadlineSeconds=1000))
    suspend(control_plane, True)
    control_plane.wait_for(lambda: is_true(control_plane.job(), "Suspended"), "it is suspended")
    long_ago = {"startTime": "2020-01-01T00:00:00Z"}
    control_plane.store.update(JOBS, "default", "train", lambda obj: obj["status"].update(long_ago))
    for index in (0, 1):
        finish(control_plane, index, 75)
    suspend(control_plane, False)
    wait_for_pods(control_plane, 0, 1)
    assert control_plane.job()["status"]["startTime"] > "2026"
    assert control_plane.job_result() == ""


def suspend(plane: KubernetesCluster, value: bool) -> None:
    """As Kueue does."""
    plane.store.update(JOBS, "default", "train", lambda obj: obj["spec"].update(suspend=value))


@quick
def test_a_job_that_takes_too_long_is_ended(control_plane: KubernetesCluster) -> None:
    # Not by `submit`: on a busy machine its wait can be longer than the deadline.
    control_plane.store.create(JOBS, "default", job("train", activeDeadlineSeconds=1))
    control_plane.wait_phases("Terminating", "Terminating", within_s=10)
    for index in (0, 1):
        finish(control_plane, index, 143)
    control_plane.wait_job_result("Failed: DeadlineExceeded")


@pytest.mark.parametrize("control_plane", [ClusterSettings(ttl_scale=0.001)], indirect=True)
def test_a_finished_job_is_removed_after_its_ttl_with_its_pods(control_plane: KubernetesCluster) -> None:
    submit(control_plane, job("train", completions=1, ttlSecondsAfterFinished=500))
    finish(control_plane, 0)
    control_plane.wait_for(lambda: control_plane.objects(JOBS) == [], "the Job goes")
    control_plane.wait_for(lambda: control_plane.pods() == [], "its pod goes")


# Pods that cannot be.


@quick
def test_refused_pods_leave_a_job_with_none_and_events(control_plane: KubernetesCluster) -> None:
    why = "exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4"
    control_plane.refuse_pods(why)
    control_plane.store.create(JOBS, "default", job("train"))
    control_plane.wait_for(lambda: bool(control_plane.events("FailedCreate")), "an event tells it")
    assert control_plane.pods() == []
    said = control_plane.events("FailedCreate")[0]
    assert said.startswith('Error creating: pods "train-0-')
    assert said.endswith(f'" is forbidden: {why}')
    control_plane.store.admission.pop()
    wait_for_pods(control_plane, 0, 1)


def test_a_pod_waits_for_a_node_with_free_resources(control_plane: KubernetesCluster) -> None:
    many = container("true", resources={"limits": {"nvidia.com/gpu": "9"}})
    control_plane.store.create(JOBS, "default", job("train", completions=1, containers=[many]))
    control_plane.wait_for(lambda: bool(control_plane.events("FailedScheduling")), "an event tells it")
    assert control_plane.events("FailedScheduling") == [
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    ]
    condition = find_condition(control_plane.pod(0).manifest, "PodScheduled")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")


def test_pods_share_the_gpus_of_the_nodes(control_plane: KubernetesCluster) -> None:
    half = container("true", resources={"limits": {"nvidia.com/gpu": "5"}})
    submit(control_plane, job("train", containers=[half]))
    assert {pod.node for pod in control_plane.pods()} == {"node-1", "node-2"}
    control_plane.store.create(JOBS, "default", job("late", completions=1, containers=[half]))
    control_plane.wait_for(lambda: bool(control_plane.events("FailedScheduling")), "no room is left")


def test_pods_are_held_until_they_are_released(control_plane: KubernetesCluster) -> None:
    control_plane.hold_pods("0/2 nodes are available: 2 node(s) had untolerated taint {maintenance: }.")
    control_plane.store.create(JOBS, "default", job("train"))
    control_plane.wait_for(lambda: len(control_plane.events("FailedScheduling")) == 2, "both wait")
    control_plane.release_pods()
    wait_for_pods(control_plane, 0, 1)
