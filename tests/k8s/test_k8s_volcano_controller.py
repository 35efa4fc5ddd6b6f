"""The fake Volcano handles the jobs that dist-train renders as Volcano does.

https://volcano.sh/en/docs/vcjob/ and the project's own controller.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.api.errors import ApiError
from cluster.harness.operator_manifests import vcjob
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster
from cluster.objects import CONFIG_MAPS, PODS, SERVICES, Manifest, find_condition, is_true
from cluster.operators.volcano_pods import GROUP, POD_GROUPS, POLICIES, VC_JOBS
from cluster.operators.volcano_scheduler import make_queue
from cluster.pod import Pod


@pytest.fixture
def plane(control_plane: KubernetesCluster) -> KubernetesCluster:
    """A cluster with Volcano."""
    control_plane.install("volcano")
    return control_plane


def submit(plane: KubernetesCluster, manifest: Manifest) -> list[Pod]:
    """Create a vcjob; return its pods, which run."""
    plane.store.create(VC_JOBS, "default", manifest)
    return running(plane)


def running(plane: KubernetesCluster, count: int = 2) -> list[Pod]:
    """Wait for so many pods with a node, set them running, and return them."""

    def living() -> list[Pod]:
        return [pod for pod in plane.pods() if pod.node and not (pod.has_ended or pod.is_terminating)]

    plane.wait_for(lambda: len(living()) == count, f"{count} pods on nodes", within_s=10)
    plane.manual_kubelet.run(*living())
    wait_phase(plane, "Running")
    return living()


def status(plane: KubernetesCluster) -> Manifest:
    """The state of the only vcjob."""
    [found] = plane.objects(VC_JOBS)
    return dict(found.get("status") or {})


def phase(plane: KubernetesCluster) -> str:
    return str(status(plane).get("state", {}).get("phase", ""))


def wait_phase(plane: KubernetesCluster, wanted: str) -> None:
    """Wait until the vcjob is in this state."""
    plane.wait_for(lambda: phase(plane) == wanted, f"{wanted}: {status(plane)}", within_s=10)


def end(plane: KubernetesCluster, pods: Sequence[Pod], code: int) -> None:
    """End those of them that run."""
    left = {pod.uid for pod in plane.pods() if pod.node and not pod.has_ended}
    for pod in pods:
        if pod.uid in left:
            plane.manual_kubelet.end(pod, code)


def test_it_creates_its_pods_and_their_network(plane: KubernetesCluster) -> None:
    pods = submit(plane, vcjob())
    assert [pod.name for pod in pods] == ["train-node-0-0", "train-node-1-0"]
    metadata, spec = pods[1].manifest["metadata"], pods[1].manifest["spec"]
    assert (spec["hostname"], spec["subdomain"], spec["schedulerName"]) == (
        "train-node-1-0",
        "train",
        "volcano",
    )
    [job] = plane.objects(VC_JOBS)
    assert metadata["annotations"][GROUP] == f"train-{job['metadata']['uid']}"
    assert metadata["labels"]["volcano.sh/task-spec"] == "node-1"
    [service] = plane.objects(SERVICES)
    assert service["spec"]["selector"].items() <= metadata["labels"].items()
    assert service["spec"]["publishNotReadyAddresses"] is True
    [hosts] = plane.objects(CONFIG_MAPS)
    assert hosts["data"]["VC_NODE_1_HOSTS"] == "train-node-1-0.train"
    [policy] = plane.objects(POLICIES)
    assert policy["metadata"]["name"] == "train"
    variables = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert variables["VC_TASK_INDEX"] == "0"
    assert "VC_NODE_0_HOSTS" in variables


def test_it_is_completed_when_its_pods_have_succeeded(plane: KubernetesCluster) -> None:
    first, second = submit(plane, vcjob())
    plane.manual_kubelet.end(first)
    plane.wait_for(lambda: status(plane).get("succeeded") == 1, "one")
    assert phase(plane) == "Running"
    plane.manual_kubelet.end(second)
    wait_phase(plane, "Completed")
    plane.wait_for(lambda: not plane.objects(SERVICES), "its network goes")
    assert [pod.phase for pod in plane.pods()] == ["Succeeded", "Succeeded"]


@pytest.mark.parametrize("how", ["failed", "evicted"])
def test_one_pod_lost_restarts_all(plane: KubernetesCluster, how: str) -> None:
    first, second = submit(plane, vcjob())
    if how == "failed":
        plane.manual_kubelet.end(second, 137)
    else:
        plane.delete(second, grace_s=0)
    wait_phase(plane, "Restarting")
    assert status(plane)["retryCount"] == 1
    plane.wait_for(
        lambda: first.uid in [pod.uid for pod in plane.pods() if pod.is_terminating], "it is to go"
    )

    def fails(obj: Manifest) -> None:
        obj["status"]["phase"] = "Failed"

    plane.store.update(PODS, "default", first.name, fails)
    with pytest.raises(AssertionError, match="not within"):
        plane.wait_for(lambda: status(plane)["retryCount"] > 1, "a second restart", within_s=0.3)
    plane.manual_kubelet.end(first, 79)
    again = running(plane)
    assert {pod.uid for pod in again}.isdisjoint({first.uid, second.uid})
    assert status(plane)["retryCount"] == 1, "what ended because of it is of a version that is past"


def test_at_its_last_restart_it_has_failed_and_keeps_what_ended(plane: KubernetesCluster) -> None:
    pods = submit(plane, vcjob(max_retry=2))
    plane.manual_kubelet.end(pods[1], 3)
    wait_phase(plane, "Restarting")
    end(plane, pods, 79)
    again = running(plane)
    plane.manual_kubelet.end(again[1], 3)
    wait_phase(plane, "Failed")
    assert status(plane)["retryCount"] == 2
    assert again[1].uid in [pod.uid for pod in plane.pods() if pod.has_ended]


def test_an_exit_code_of_a_policy_terminates_it(plane: KubernetesCluster) -> None:
    first, second = submit(plane, vcjob())
    plane.manual_kubelet.end(second, 78)
    wait_phase(plane, "Terminating")
    plane.manual_kubelet.end(first, 79)
    wait_phase(plane, "Terminated")
    assert "retryCount" not in status(plane)
    assert [pod.uid for pod in plane.pods()] == [second.uid], "what had ended stays"


def test_suspended_by_command_it_is_aborted(plane: KubernetesCluster) -> None:
    pods = submit(plane, vcjob())
    plane.operators.volcano.command("train", "AbortJob")
    wait_phase(plane, "Aborting")
    end(plane, pods, 75)
    wait_phase(plane, "Aborted")


def test_there_are_no_pods_before_the_podgroup_is_admitted(plane: KubernetesCluster) -> None:
    plane.operators.volcano_scheduler.full = "queue resource quota insufficient"
    plane.store.create(VC_JOBS, "default", vcjob())
    wait_phase(plane, "Pending")
    plane.wait_for(
        lambda: plane.events("Unschedulable") == ["queue resource quota insufficient"], "the refusal"
    )
    [group] = plane.objects(POD_GROUPS)
    assert (group["status"]["phase"], group["spec"]["minMember"]) == ("Pending", 2)
    assert not plane.pods()
    plane.operators.volcano_scheduler.full = ""
    plane.store.poke()
    running(plane)
    plane.wait_for(lambda: is_true(plane.objects(POD_GROUPS)[0], "Scheduled"), "the PodGroup is scheduled")


@pytest.mark.parametrize("control_plane", [ClusterSettings(nodes=1, gpus_per_node=1)], indirect=True)
def test_all_get_a_machine_or_none(plane: KubernetesCluster) -> None:
    manifest = vcjob()
    for task in manifest["spec"]["tasks"]:
        [one] = task["template"]["spec"]["containers"]
        one["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    plane.store.create(VC_JOBS, "default", manifest)
    plane.wait_for(lambda: len(plane.events("FailedScheduling")) == 2, "the refusals")
    assert [pod.node for pod in plane.pods()] == ["", ""], "also the one that would fit"
    condition = find_condition(plane.objects(POD_GROUPS)[0], "Unschedulable") or {}
    assert condition["message"].startswith("2/2 tasks in gang unschedulable")
    assert "1 Insufficient nvidia.com/gpu" in condition["message"]


@pytest.mark.parametrize(
    ("queue", "said"), [("none", "not found"), ("root", "root queue"), ("old", "status is `Closed`")]
)
def test_its_webhook_refuses_a_queue(plane: KubernetesCluster, queue: str, said: str) -> None:
    make_queue(plane.store, "old", "Closed")
    with pytest.raises(ApiError, match=said) as refused:
        plane.store.create(VC_JOBS, "default", vcjob(queue=queue))
    assert refused.value.code == 400
