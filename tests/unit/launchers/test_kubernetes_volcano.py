"""The Volcano job: TorchX's own, and our overlay."""

from __future__ import annotations

import warnings

import pytest
from kubernetes_plans import options_with, rendered
from slurm_stand_ins import Job

from launchers._kubernetes.manifest.app import app_of
from launchers._kubernetes.manifest.volcano import torchx_resource


def test_it_is_rendered_by_torchx(job: Job) -> None:
    """What TorchX renders besides the pods is kept."""
    spec = job(nodes=2)
    theirs = torchx_resource(app_of(spec, options_with(kind="volcano")), options_with(queue="team"))["spec"]
    ours = rendered(spec, kind="volcano", queue="team")[-1]["spec"]
    for name in ("schedulerName", "queue", "plugins"):
        assert ours[name] == theirs[name]
    assert (ours["schedulerName"], ours["queue"]) == ("volcano", "team")
    assert ours["plugins"] == {"svc": ["--publish-not-ready-addresses"], "env": []}
    kept = [(task["name"], task["replicas"], task["minAvailable"]) for task in ours["tasks"]]
    assert kept == [("trainer-0", 1, 1), ("trainer-1", 1, 1)]


def test_the_name_is_the_runs_own_and_not_a_random_one(job: Job) -> None:
    names = set()
    for _ in range(3):
        [made] = rendered(job(nodes=2), kind="volcano")
        for task in made["spec"]["tasks"]:
            labels = task["template"]["metadata"]["labels"]
            names |= {made["metadata"]["name"], labels["app.kubernetes.io/instance"]}
            assert labels["torchx.pytorch.org/app-name"] == "digits"
    assert names == {"digits"}


def test_each_node_has_a_task_and_its_rank(job: Job) -> None:
    [made] = rendered(job(nodes=3), kind="volcano")
    ranks = []
    for task in made["spec"]["tasks"]:
        [agent] = task["template"]["spec"]["containers"]
        found = {item["name"]: item.get("value") for item in agent["env"]}
        ranks.append((task["name"], found["DIST_TRAIN_NODE_RANK"]))
    assert ranks == [("trainer-0", "0"), ("trainer-1", "1"), ("trainer-2", "2")]


def test_the_gang_starts_and_restarts_together(job: Job) -> None:
    spec = rendered(job(nodes=3, max_restarts=5), kind="volcano")[-1]["spec"]
    assert spec["minAvailable"] == 3
    assert spec["maxRetry"] == 6, "Volcano gives up at its sixth restart: five are made"
    assert spec["policies"] == [
        {"exitCode": 1, "action": "TerminateJob"},
        {"exitCode": 2, "action": "TerminateJob"},
        {"exitCode": 73, "action": "TerminateJob"},
        {"exitCode": 76, "action": "TerminateJob"},
        {"exitCode": 77, "action": "TerminateJob"},
        {"exitCode": 78, "action": "TerminateJob"},
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": "RestartJob"},
    ]
    for task in spec["tasks"]:
        assert not {"policies", "maxRetry"} & set(task), "a task's own would go first"
    assert spec["ttlSecondsAfterFinished"] == 604800


def test_a_job_without_restarts(job: Job) -> None:
    assert rendered(job(max_restarts=0), kind="volcano")[-1]["spec"]["maxRetry"] == 1


def test_the_overlay_replaces_what_torchx_lacks(job: Job) -> None:
    spec = job(nodes=2, device="cuda", resources=(("mem", "64G"), ("cpus_per_gpu", "8")))
    made = rendered(spec, kind="volcano", resource=("rdma/ib=1",))[-1]
    for task in made["spec"]["tasks"]:
        pod = task["template"]["spec"]
        [agent] = pod["containers"]
        amounts = {
            "cpu": "16",
            "memory": "64Gi",
            "ephemeral-storage": "16Gi",
            "nvidia.com/gpu": "2",
            "rdma/ib": "1",
        }
        assert agent["resources"] == {"requests": amounts, "limits": amounts}, "TorchX asks for less"
        assert sorted(volume["name"] for volume in pod["volumes"]) == ["dshm", "runs", "tmp"]
        [shm] = [volume for volume in pod["volumes"] if volume["name"] == "dshm"]
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
        assert [mount["mountPath"] for mount in agent["volumeMounts"]].count("/runs") == 1


def test_the_queue_that_volcano_always_has(job: Job) -> None:
    assert rendered(job(), kind="volcano")[-1]["spec"]["queue"] == "default"


def test_a_priority_counts_for_job_and_pods(job: Job) -> None:
    spec = rendered(job(), kind="volcano", priority_class="high")[-1]["spec"]
    assert spec["priorityClassName"] == "high"
    assert spec["tasks"][0]["template"]["spec"]["priorityClassName"] == "high"


def test_torchxs_warning_of_an_old_volcano_is_not_shown(job: Job) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rendered(job(max_restarts=3), kind="volcano")


def test_the_patch_reaches_what_torchx_wrote(job: Job) -> None:
    remove = {"spec": {"nodeSelector": None}, "metadata": {"labels": {"torchx.pytorch.org/version": None}}}
    [made] = rendered(job(), kind="volcano", pod_patch=remove)
    [task] = made["spec"]["tasks"]
    assert "nodeSelector" not in task["template"]["spec"]
    assert "torchx.pytorch.org/version" not in task["template"]["metadata"]["labels"]


@pytest.mark.parametrize("nodes", [1, 2, 12])
def test_pods_names_fit_a_dns_label(job: Job, nodes: int) -> None:
    [made] = rendered(job(nodes=nodes, name="x" * 80), kind="volcano")
    for task in made["spec"]["tasks"]:
        assert len(f"{made['metadata']['name']}-{task['name']}-0") <= 63
