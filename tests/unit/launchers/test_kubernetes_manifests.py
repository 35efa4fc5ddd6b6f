"""The objects of a job: order, restarts of the gang, and the bytes of the plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jsonschema
import pytest
from kubernetes_crd_schemas import SMALL
from kubernetes_plans import KINDS, of_kind, options_with, rendered
from kubernetes_schemas import CRDS, Manifest, Refused, check, custom
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from dist_train.jobs import Target
from launchers._kubernetes.manifest.render import from_yaml, to_yaml
from launchers._kubernetes.manifest.summary import notes, summary
from launchers._kubernetes.manifest.support_objects import config_map

every_kind = pytest.mark.parametrize("kind", KINDS)
CONFIG = Target("config", "/home/me/d.yaml", (), "/home/me")


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("job", ["ConfigMap", "NetworkPolicy", "Service", "Job"]),
        ("jobset", ["ConfigMap", "NetworkPolicy", "JobSet"]),
        ("volcano", ["ConfigMap", "NetworkPolicy", "Job"]),
        ("trainjob", ["ConfigMap", "NetworkPolicy", "TrainingRuntime", "TrainJob"]),
    ],
)
def test_the_objects_and_their_order(job: Job, kind: str, made: list[str]) -> None:
    spec = job(nodes=2, target=CONFIG, config_yaml="seed: 1\n")
    found = rendered(spec, kind=kind, network_policy=True)
    assert [manifest["kind"] for manifest in found] == made
    fewer = [manifest["kind"] for manifest in rendered(job(nodes=2), kind=kind)]
    assert fewer == [name for name in made if name not in ("ConfigMap", "NetworkPolicy")]


@every_kind
def test_every_object_has_the_runs_label(job: Job, kind: str) -> None:
    spec = job(nodes=2, target=CONFIG, config_yaml="seed: 1\n", name="Digits_1", run_id="Digits_1-3f")
    for manifest in rendered(spec, kind=kind, namespace="team", network_policy=True):
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "team"
        assert metadata["labels"]["dist-train/run-id"] == "Digits_1-3f"
        assert metadata["labels"]["dist-train/name"] == "Digits_1"
        assert metadata["name"].startswith("digits-1-")


@every_kind
def test_kueues_label_is_on_the_job_object(job: Job, kind: str) -> None:
    found = rendered(job(nodes=2), kind=kind, queue="team-a")
    queues = [m["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") for m in found]
    if kind == "volcano":
        assert queues == [None]
        assert found[-1]["spec"]["queue"] == "team-a"
    else:
        assert queues == [None] * (len(found) - 1) + ["team-a"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_etcd_refuses_is_refused_before_it_is_submitted(job: Job, kind: str) -> None:
    long = tuple((f"V{number}", "x" * 100_000) for number in range(15))
    with pytest.raises(ConfigError, match=r"has 15[0-9]{5} bytes; the cluster keeps 1441792") as caught:
        rendered(job(nodes=2, env=long), kind=kind)
    assert "put long arguments" in str(caught.value.hint)


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_nodes_are_rendered_at_once(job: Job, kind: str) -> None:
    began = time.monotonic()
    rendered(job(nodes=1000), kind=kind)
    assert time.monotonic() - began < 15


RULES = [
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    {
        "action": "FailJob",
        "onExitCodes": {
            "containerName": "node",
            "operator": "NotIn",
            "values": [69, 70, 74, 75, 79, *range(128, 160)],
        },
    },
    {"action": "Ignore", "onExitCodes": {"containerName": "node", "operator": "In", "values": [75, 79]}},
]


def test_a_job_restarts_as_a_gang(job: Job) -> None:
    spec = rendered(job(nodes=3, max_restarts=5, time_limit_s=7200))[-1]["spec"]
    del spec["template"]
    assert spec == {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimit": 5,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": RULES},
        "activeDeadlineSeconds": 7200,
        "ttlSecondsAfterFinished": 604800,
    }, "and no backoffLimitPerIndex"


def test_the_pods_of_a_job_are_found_before_they_are_ready(job: Job) -> None:
    service, made = rendered(job(nodes=2))
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": "digits"},
        "ports": [{"name": "rdzv", "port": 29400}],
    }
    subdomain = made["spec"]["template"]["spec"]["subdomain"]
    assert subdomain == service["metadata"]["name"] == made["metadata"]["name"]


@every_kind
def test_no_object_asks_for_an_address_family(job: Job, kind: str) -> None:
    """An IPv6-only cluster refuses a Service of IPv4."""
    text = to_yaml(rendered(job(nodes=2), kind=kind)).decode()
    assert not [word for word in ("ipFamil", "0.0.0.0", "IPv4") if word in text]


def test_a_jobset_is_recreated_as_a_whole(job: Job) -> None:
    spec = rendered(job(nodes=3, max_restarts=5, time_limit_s=7200), kind="jobset")[-1]["spec"]
    [replicated] = spec.pop("replicatedJobs")
    assert spec == {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": "digits"},
        "failurePolicy": {
            "maxRestarts": 5,
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {
                    "name": "fatalExitCode",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                },
                {"name": "timeLimit", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
            ],
        },
        "ttlSecondsAfterFinished": 604800,
    }
    assert (replicated["name"], replicated["replicas"]) == ("node", 1)
    child = replicated["template"]["spec"]
    del child["template"]
    assert child == {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": RULES},
        "activeDeadlineSeconds": 7200,
    }


def test_a_train_job_names_a_runtime_of_ours(job: Job) -> None:
    spec = job(nodes=3, max_restarts=5, time_limit_s=7200)
    runtime, made = rendered(spec, kind="trainjob")
    assert made["spec"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": runtime["metadata"]["name"],
        },
        "trainer": {"numNodes": 3},
        "activeDeadlineSeconds": 7200,
    }
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 3}, "a torch policy would add PET_* variables"
    assert "PET_" not in repr(runtime)
    template = runtime["spec"]["template"]
    assert template["metadata"]["labels"]["dist-train/run-id"] == "digits-1f"
    [replicated] = template["spec"]["replicatedJobs"]
    # What the controller demands of a training step: its label, one replica, a container of this name.
    labels = replicated["template"]["metadata"]["labels"]
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert replicated["replicas"] == 1
    [agent] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert agent["name"] == "node"
    assert "activeDeadlineSeconds" not in replicated["template"]["spec"], "the TrainJob has it"


def test_the_runtime_is_the_job_set_of_the_same_job(job: Job) -> None:
    """The JobSet that Trainer makes of it is the same, but for its own label and the agents' addresses."""
    spec = job(nodes=2)
    [job_set] = rendered(spec, kind="jobset")
    template = rendered(spec, kind="trainjob")[0]["spec"]["template"]
    del template["spec"]["replicatedJobs"][0]["template"]["metadata"]["labels"][
        "trainer.kubeflow.org/trainjob-ancestor-step"
    ]
    assert template["spec"] == job_set["spec"]


@every_kind
def test_what_was_not_asked_for_is_not_rendered(job: Job, kind: str) -> None:
    text = to_yaml(rendered(job(nodes=2), kind=kind, ttl="never")).decode()
    for word in (
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "kueue",
        "priorityClass",
        "serviceAccountName",
        "imagePullSecrets",
        "runAsUser",
        "fsGroup",
        "subPath",
        "IPC_LOCK",
        "suspend",
        "timeLimit",
    ):
        assert word not in text


def test_the_config_cannot_change_under_a_run(job: Job) -> None:
    text = "name: it's\nlr: 1e-4\nnote: $HOME\n"
    [found] = of_kind(rendered(job(target=CONFIG, config_yaml=text)), "ConfigMap")
    assert found["metadata"]["name"] == "digits-config"
    assert found["immutable"] is True
    assert found["data"] == {"config.yaml": text}


def test_a_config_that_no_config_map_holds(job: Job) -> None:
    spec = job(target=CONFIG, config_yaml="x" * 2**20)
    with pytest.raises(ConfigError, match="the config has 1048576 bytes; a ConfigMap holds 1047552"):
        config_map(spec, options_with())
    assert config_map(job(target=CONFIG, config_yaml="x" * 1047552), options_with())


@every_kind
def test_a_network_policy_admits_only_the_runs_own_pods(job: Job, kind: str) -> None:
    [policy] = of_kind(rendered(job(nodes=2), kind=kind, network_policy=True), "NetworkPolicy")
    pods = {"matchLabels": {"dist-train/run-id": "digits-1f"}}
    assert policy["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
        "egress": [
            {"to": [{"podSelector": pods}]},
            {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        ],
    }


@every_kind
def test_rendering_is_pure(job: Job, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(nodes=2, target=CONFIG, config_yaml="seed: 1\n", secrets=("HF_TOKEN",))
    first = to_yaml(rendered(spec, kind=kind))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setenv("USER", "somebody")
    assert to_yaml(rendered(spec, kind=kind)) == first


@every_kind
def test_yaml_round_trip(job: Job, kind: str) -> None:
    found = rendered(job(nodes=2, target=CONFIG, config_yaml="a: |\n  x \n\n\nb: 1\n"), kind=kind)
    assert from_yaml(to_yaml(found)) == found
    assert b"&id" not in to_yaml(found), "each object in full"
    assert to_yaml(found).count(b"\n---\n") == len(found) - 1


# Where PyYAML and Go's YAML, which kubectl has, differ; seen with kubectl 1.32.
WORDS = ["1e-4", "1E5", "0o17", "0x1F", "0b11", "1_000", "12:30:45", "+1", ".5", "1.", "-0", "y", "N", "on"]
WORDS += ["~", "null", "true", "=", "<<", ".inf", "2026-01-01", "", " x", "x ", "a: b", "- x", "#c", "'q'"]
WORDS += ["a\nb", "a\nb \n", "\n", "a\rb", "\x85a", "\u2028x", "\ufeffx", "\ta", "é☃", "\x1b[0m", "%p", "@a"]


def test_every_string_stays_a_string_in_every_parser() -> None:
    import yaml

    text = to_yaml([{"kind": "X", "data": dict(enumerate(WORDS))}])
    [back] = from_yaml(text)
    assert list(back["data"].values()) == WORDS
    plain = {
        node.value
        for node in _scalars(yaml.compose(text.decode()))
        if isinstance(node, yaml.ScalarNode) and node.style is None and node.tag.endswith(":str")
    }
    # What YAML 1.1 and 1.2 agree upon: a letter first, and no single y or n.
    assert {word for word in plain if word in WORDS} == {"é☃"}


def _scalars(node: Any) -> list[Any]:
    if isinstance(node.value, list):
        parts = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
        return [found for part in parts for found in _scalars(part)]
    return [node]


@every_kind
def test_the_summary_has_size_kind_and_place(job: Job, kind: str) -> None:
    found = summary(job(nodes=2, procs_per_node=4, device="cuda"), options_with(kind=kind, namespace="team"))
    name = {"job": "Job", "jobset": "JobSet", "volcano": "Volcano Job", "trainjob": "TrainJob"}[kind]
    assert found == f"2 node(s) x 4 GPU processes on Kubernetes: {name} digits in namespace team"


def test_no_notes_where_all_options_are_given(job: Job) -> None:
    assert notes(job(resources=(("mem", "8G"), ("cpus_per_gpu", "2"))), options_with()) == ()


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        (
            {"rdma": True, "namespace": "team"},
            "kubectl label namespace team pod-security.kubernetes.io/enforce=privileged",
        ),
        ({"run_volume": None}, "the run ends with its pod, checkpoints too (--run-volume pvc/NAME)"),
        ({"image": "me/x"}, "the image me/x may be another one at each start: give a tag or a digest"),
        ({}, "each node has at most 2 cores (--cpus-per-gpu) and 4Gi memory (--mem)"),
        ({"kind": "jobset"}, "the time limit is that of each attempt"),
    ],
)
def test_notes(job: Job, given: dict[str, object], noted: str) -> None:
    assert any(noted in note for note in notes(job(time_limit_s=60), options_with(**given)))


# The validator itself: each of these is refused, so that `rendered` can fail.
SPOILERS: list[tuple[str, Callable[[Manifest], object]]] = [
    ("job", lambda m: m["spec"].update(unknown=1)),
    ("job", lambda m: m["spec"].update(completions="2")),
    ("job", lambda m: m["spec"]["template"]["spec"]["containers"][0].update(comand=[])),
    (
        "job",
        lambda m: m["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "X", "value": 1}),
    ),
    ("job", lambda m: m["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "HOME"})),
    ("job", lambda m: m["spec"]["template"]["spec"]["volumes"].pop()),
    ("job", lambda m: m["spec"]["template"]["spec"]["volumes"][0].update(emptyDir={})),
    ("job", lambda m: m["metadata"]["labels"].update(x="a b")),
    ("job", lambda m: m["metadata"].update(name="Digits")),
    ("job", lambda m: m["spec"]["template"]["metadata"]["annotations"].update(x=None)),
    ("job", lambda m: m["spec"].pop("template")),
    ("jobset", lambda m: m["spec"].update(unknown=1)),
    ("jobset", lambda m: m["spec"]["failurePolicy"].update(restartStrategy="Blocking")),
    ("jobset", lambda m: m["spec"]["failurePolicy"]["rules"][0].pop("name")),
    ("jobset", lambda m: m["spec"]["replicatedJobs"][0]["template"]["spec"].update(unknown=1)),
    ("jobset", lambda m: m["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"].update(x=1)),
    ("volcano", lambda m: m["spec"].update(minAvailable="2")),
    ("volcano", lambda m: m["spec"].update(unknown=1)),
    ("volcano", lambda m: m["spec"]["tasks"][0]["template"]["spec"].update(unknown=1)),
    ("trainjob", lambda m: m["spec"].pop("runtimeRef")),
    ("trainjob", lambda m: m["spec"].update(activeDeadlineSeconds=0)),
    ("trainjob", lambda m: m["spec"].update(unknown=1)),
]


@pytest.mark.parametrize(("kind", "spoil"), SPOILERS)
def test_the_validator_refuses(job: Job, kind: str, spoil: Callable[[Manifest], object]) -> None:
    top = rendered(job(nodes=2), kind=kind)[-1]
    check(top)
    spoiled = deepcopy(top)
    spoil(spoiled)
    with pytest.raises(Refused):
        check(spoiled)


@pytest.mark.parametrize("kind", ["jobset", "volcano", "trainjob"])
def test_the_small_schemas_and_the_published_ones_agree(job: Job, kind: str) -> None:
    """The small ones replace missing published ones: what they accept, those accept too."""
    spec = job(nodes=2, time_limit_s=None if kind == "volcano" else 60)
    for manifest in rendered(spec, kind=kind, queue="a", priority_class="high", ttl="1h"):
        key = (manifest["apiVersion"], manifest["kind"])
        jsonschema.Draft202012Validator(SMALL[key]).validate(manifest)
        if CRDS.is_dir():
            custom(*key).validate(manifest)
