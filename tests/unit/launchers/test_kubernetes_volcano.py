"""The Volcano job: TorchX's own, and our overlay."""

from __future__ import annotations

import time
import warnings

import pytest
from kubernetes_plans import options_with, rendered
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from launchers._kubernetes.manifest.app import app_of
from launchers._kubernetes.manifest.render import to_yaml
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
    assert kept == [("trainer", 2, 2)]


def test_the_name_is_the_runs_own_and_not_a_random_one(job: Job) -> None:
    names = set()
    for _ in range(3):
        [made] = rendered(job(nodes=2), kind="volcano")
        for task in made["spec"]["tasks"]:
            labels = task["template"]["metadata"]["labels"]
            names |= {made["metadata"]["name"], labels["app.kubernetes.io/instance"]}
            assert labels["torchx.pytorch.org/app-name"] == "digits"
    assert names == {"digits"}


def test_a_thousand_nodes_have_one_template_and_are_rendered_at_once(job: Job) -> None:
    """One template for each took 59 s and 3.3 MB: etcd takes 1.5 MiB."""
    began = time.monotonic()
    [made] = rendered(job(nodes=1000), kind="volcano")
    assert time.monotonic() - began < 15
    assert len(to_yaml([made])) < 20_000
    [task] = made["spec"]["tasks"]
    [agent] = task["template"]["spec"]["containers"]
    assert "DIST_TRAIN_NODE_RANK" not in str(agent["env"]), "Volcano's plugin env sets VC_TASK_INDEX"
    assert "replica-id" not in str(task["template"]["metadata"])
    assert made["spec"]["plugins"]["env"] == []


def test_more_pods_than_one_variable_can_name_are_refused(job: Job) -> None:
    """VC_TRAINER_HOSTS has the names of all: a longer one, and no program starts in the pods."""
    rendered(job(nodes=1000, name="x" * 40), kind="volcano")
    with pytest.raises(ConfigError, match=r"the names of 2000 pods have 1[0-9]{5} bytes") as caught:
        rendered(job(nodes=2000, name="x" * 40), kind="volcano")
    assert caught.value.hint == "--kind jobset or job, or a shorter --name"


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
        assert len(f"{made['metadata']['name']}-{task['name']}-{nodes - 1}") <= 63
