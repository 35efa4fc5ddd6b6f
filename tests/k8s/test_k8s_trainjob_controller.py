"""Kubeflow's Trainer creates the documented JobSet of a TrainJob and its TrainingRuntime.

https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api.errors import ApiError
from cluster.api.store import Deletion
from cluster.harness.operator_manifests import runtime, train_job
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import CONFIG_MAPS, JOBS, Manifest, find_condition, is_true
from cluster.operators.jobset_children import JOB_SETS
from cluster.operators.trainjobs import RUNTIMES, TRAIN_JOBS


@pytest.fixture
def plane(control_plane: KubernetesCluster) -> KubernetesCluster:
    """A cluster with Trainer and JobSet."""
    control_plane.install("trainer")
    return control_plane


def submit(plane: KubernetesCluster, made: Manifest, job: Manifest) -> Manifest:
    """The JobSet that it creates."""
    plane.store.create(RUNTIMES, "default", made)
    plane.store.create(TRAIN_JOBS, "default", job)
    plane.wait_for(lambda: bool(plane.objects(JOB_SETS)), "a JobSet")
    [found] = plane.objects(JOB_SETS)
    return found


def agent_of(job_set: Manifest) -> Manifest:
    """The trainer's container."""
    [replicated] = job_set["spec"]["replicatedJobs"]
    [found] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def top(plane: KubernetesCluster) -> Manifest:
    """The current TrainJob."""
    [found] = plane.objects(TRAIN_JOBS)
    return found


def wait_condition(plane: KubernetesCluster, kind: str) -> Manifest:
    """Wait until the condition is true."""
    plane.wait_for(lambda: is_true(top(plane), kind), f"{kind}: {top(plane).get('status')}", within_s=10)
    found = find_condition(top(plane), kind)
    assert found is not None
    return found


def test_the_runtimes_template_becomes_the_trainjobs_jobset(plane: KubernetesCluster) -> None:
    made = submit(plane, runtime(), train_job())
    assert made["metadata"]["name"] == "train"
    assert made["metadata"]["labels"] == {"team": "a"}
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainJob", top(plane)["metadata"]["uid"])
    [replicated] = made["spec"]["replicatedJobs"]
    counts = (replicated["template"]["spec"]["parallelism"], replicated["template"]["spec"]["completions"])
    assert counts == (2, 2)
    assert agent_of(made)["image"] == "example.org/train:1"
    plane.wait_for(lambda: len(plane.pods()) == 2, "two pods")


def test_fields_of_the_trainjob_override_the_runtime(plane: KubernetesCluster) -> None:
    trainer = {
        "numNodes": 3,
        "image": "example.org/other:2",
        "command": ["train"],
        "args": ["--fast"],
        "env": [{"name": "SET", "value": "trainjob"}, {"name": "NEW", "value": "1"}],
        "resourcesPerNode": {"limits": {"memory": "2Gi"}},
    }
    made = submit(plane, runtime(), train_job(trainer=trainer))
    agent = agent_of(made)
    assert (agent["image"], agent["command"], agent["args"]) == ("example.org/other:2", ["train"], ["--fast"])
    assert {one["name"]: one["value"] for one in agent["env"]} == {"KEPT": "1", "SET": "trainjob", "NEW": "1"}
    assert agent["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    plane.wait_for(lambda: len(plane.pods()) == 3, "three pods")


@pytest.mark.parametrize(("policy", "expected"), [({}, False), ({"torch": {}}, True)], ids=["plain", "torch"])
def test_the_torch_policy_alone_adds_pet_variables(
    plane: KubernetesCluster, policy: dict[str, Any], expected: bool
) -> None:
    made = submit(plane, runtime(**policy), train_job())
    variables = {one["name"]: one.get("value") for one in agent_of(made)["env"]}
    assert any(name.startswith("PET_") for name in variables) == expected
    if expected:
        assert (variables["PET_NNODES"], variables["PET_MASTER_ADDR"]) == ("2", "train-node-0-0.train")


def test_it_is_complete_when_its_jobset_is(plane: KubernetesCluster) -> None:
    submit(plane, runtime(), train_job())
    plane.wait_for(lambda: len([pod for pod in plane.pods() if pod.node]) == 2, "two pods")
    for pod in plane.pods():
        plane.manual_kubelet.end(pod)
    assert wait_condition(plane, "Complete")["reason"] == "AllJobsCompleted"
    [child] = top(plane)["status"]["jobsStatus"]
    assert (child["name"], child["succeeded"]) == ("node", 1)


def test_it_has_failed_when_its_jobset_has(plane: KubernetesCluster) -> None:
    made = runtime()
    made["spec"]["template"]["spec"]["failurePolicy"]["maxRestarts"] = 0
    submit(plane, made, train_job())
    plane.wait_for(lambda: len([pod for pod in plane.pods() if pod.node]) == 2, "two pods")
    for pod in plane.pods():
        plane.manual_kubelet.end(pod, 3)
    assert wait_condition(plane, "Failed")["reason"] == "ReachedMaxRestarts"


def test_suspend_and_resume_reach_the_pods(plane: KubernetesCluster) -> None:
    made = submit(plane, runtime(), train_job(suspend=True))
    assert made["spec"]["suspend"] is True
    wait_condition(plane, "Suspended")
    assert not plane.pods()

    def resume(obj: Manifest) -> None:
        obj["spec"]["suspend"] = False

    plane.store.update(TRAIN_JOBS, "default", "train", resume)
    plane.wait_for(lambda: len(plane.pods()) == 2, "two pods")
    assert (find_condition(top(plane), "Suspended") or {})["reason"] == "Resumed"


def test_the_runtime_may_change_or_be_deleted_after_the_start(plane: KubernetesCluster) -> None:
    submit(plane, runtime(), train_job())
    names = [one["metadata"]["name"] for one in plane.objects(CONFIG_MAPS)]
    assert names == ["train-runtime-snapshot"]
    plane.store.delete(RUNTIMES, "default", "ours")
    plane.store.delete(JOB_SETS, "default", "train", Deletion(policy="Background"))
    plane.wait_for(lambda: bool(plane.objects(JOB_SETS)), "a JobSet again")
    assert not plane.events("TrainJobResourcesCreationFailed")


def test_its_time_limit_deletes_the_jobset(plane: KubernetesCluster) -> None:
    submit(plane, runtime(), train_job(activeDeadlineSeconds=1))
    assert wait_condition(plane, "Failed")["reason"] == "DeadlineExceeded"
    plane.wait_for(lambda: not (plane.objects(JOB_SETS) or plane.objects(JOBS)), "they are gone")


@pytest.mark.parametrize(
    ("policy", "job", "said"),
    [
        ({}, {"runtime": "other"}, "must be created before the TrainJob"),
        ({"torch": {}}, {"trainer": {"env": [{"name": "PET_NNODES", "value": "1"}]}}, "PET_NNODES"),
    ],
    ids=["no runtime", "reserved"],
)
def test_its_webhook_refuses(
    plane: KubernetesCluster, policy: dict[str, Any], job: dict[str, Any], said: str
) -> None:
    plane.store.create(RUNTIMES, "default", runtime(**policy))
    with pytest.raises(ApiError, match=said) as refused:
        plane.store.create(TRAIN_JOBS, "default", train_job(**job))
    assert refused.value.code == 403


def test_a_trainers_container_is_called_node(plane: KubernetesCluster) -> None:
    made = runtime()
    agent_of(made["spec"]["template"])["name"] = "main"
    with pytest.raises(ApiError, match="required container"):
        plane.store.create(RUNTIMES, "default", made)
