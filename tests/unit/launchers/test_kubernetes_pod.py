"""The pod template of every kind: containers, volumes, security, --pod-patch."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes_plans import IMAGE, KINDS, container, of_kind, options_with, pod, rendered, template
from kubernetes_schemas import containers, pod_templates
from slurm_stand_ins import Job

from dist_train.jobs import Target

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_container_is_at_the_restricted_level(job: Job, kind: str, device: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    found = rendered(job(nodes=2, device=device), kind=kind)
    templates = [part for manifest in found for part in pod_templates(manifest)]
    assert templates
    for part in templates:
        spec = part["spec"]
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, "no fixed user or group: OpenShift refuses them"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all({"emptyDir", "persistentVolumeClaim", "configMap"} & set(v) for v in spec["volumes"])
    for part in (part for manifest in found for part in containers(manifest)):
        assert part["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@every_kind
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_container_has_requests_and_limits(job: Job, kind: str, device: str) -> None:
    spec = job(nodes=2, device=device)
    found = [part for m in rendered(spec, kind=kind, resource=("a.example/x=1",)) for part in containers(m)]
    assert found
    always = {"cpu", "memory", "ephemeral-storage", "a.example/x"}
    for part in found:
        for amounts in part["resources"].values():
            assert set(amounts) == always | ({"nvidia.com/gpu"} if device == "cuda" else set())
        assert (part["resources"]["requests"] == part["resources"]["limits"]) == (device == "cuda")


@every_kind
def test_the_pods_spec_around_the_container(job: Job, kind: str) -> None:
    found = pod(job(device="cuda"), kind=kind)
    expected = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 60,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 30,
            },
            {
                "key": "node.kubernetes.io/unreachable",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 30,
            },
        ],
    }
    assert {name: found[name] for name in expected} == expected


@every_kind
def test_labels_and_annotations_disable_injection_and_eviction(job: Job, kind: str) -> None:
    metadata = template(job(), kind=kind, annotation=("k8s.v1.cni.cncf.io/networks=rdma",))["metadata"]
    labels = {
        "dist-train/run-id": "digits-1f",
        "dist-train/name": "digits",
        "app.kubernetes.io/name": "dist-train",
        "app.kubernetes.io/managed-by": "dist-train",
        "sidecar.istio.io/inject": "false",
    }
    assert metadata["labels"] | labels == metadata["labels"]
    assert metadata["annotations"] == {
        "sidecar.istio.io/inject": "false",
        "linkerd.io/inject": "disabled",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        "k8s.v1.cni.cncf.io/networks": "rdma",
    }


@every_kind
def test_the_agent_is_pid_1(job: Job, kind: str) -> None:
    found = container(job(), kind=kind, python="/opt/venv/bin/python")
    assert found["name"] == "node"
    assert found["image"] == IMAGE
    assert found["command"][:4] == ["/opt/venv/bin/python", "-P", "-m", "dist_train.agent"]
    assert "args" not in found, "no shell, and the image's ENTRYPOINT does not count"
    assert found["ports"] == [{"name": "rdzv", "containerPort": 29400}]
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("kind", "submission"),
    [
        ("job", "metadata.labels['batch.kubernetes.io/controller-uid']"),
        ("jobset", "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"),
        ("trainjob", "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"),
        ("volcano", "metadata.annotations['scheduling.k8s.io/group-name']"),
    ],
)
def test_variables_from_pod_fields(job: Job, kind: str, submission: str) -> None:
    fields = {
        item["name"]: item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container(job(), kind=kind)["env"]
        if "valueFrom" in item
    }
    assert fields == {
        "DIST_TRAIN_POD_UID": "metadata.uid",
        "DIST_TRAIN_POD_NAME": "metadata.name",
        "DIST_TRAIN_POD_NODE": "spec.nodeName",
        "DIST_TRAIN_SUBMISSION": submission,
    }


@every_kind
def test_secrets_are_references(job: Job, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-7f3a")
    spec = job(secrets=("HF_TOKEN", "WANDB_API_KEY"))
    found = rendered(spec, kind=kind, secret_ref=("WANDB_API_KEY=team/wandb", "DB_PASSWORD=db/pw"))
    assert "canary-7f3a" not in repr(found)
    for part in (part for manifest in found for part in containers(manifest)):
        keys = {
            item["name"]: item["valueFrom"]["secretKeyRef"]
            for item in part["env"]
            if "secretKeyRef" in item.get("valueFrom", {})
        }
        assert keys == {
            "HF_TOKEN": {"name": "hf-token", "key": "HF_TOKEN"},
            "WANDB_API_KEY": {"name": "team", "key": "wandb"},
            "DB_PASSWORD": {"name": "db", "key": "pw"},
        }


@pytest.mark.parametrize(("grace_s", "period"), [(30, 60), (0.5, 31), (299.5, 330)])
def test_the_pods_grace_is_longer_than_the_agents(job: Job, grace_s: float, period: int) -> None:
    assert pod(job(grace_s=grace_s))["terminationGracePeriodSeconds"] == period


def test_a_cpu_job_does_not_go_to_gpu_nodes(job: Job) -> None:
    keys = [item["key"] for item in pod(job(device="cpu"))["tolerations"]]
    assert keys == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


@every_kind
def test_the_run_volume(job: Job, kind: str) -> None:
    spec = pod(job(nodes=2), kind=kind, run_volume="pvc/team:you")
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "team"}} in spec["volumes"]
    [mount] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["mountPath"] == "/runs"]
    assert (mount["name"], mount["subPath"], mount.get("readOnly", False)) == ("runs", "you", False)


@every_kind
@pytest.mark.parametrize("volume", [None, "emptydir"])
def test_a_run_of_one_pod_needs_no_volume(job: Job, kind: str, volume: str | None) -> None:
    spec = pod(job(), kind=kind, run_volume=volume)
    assert {"name": "runs", "emptyDir": {"sizeLimit": "4Gi"}} in spec["volumes"]
    assert {"name": "runs", "mountPath": "/runs"} in spec["containers"][0]["volumeMounts"]


@every_kind
def test_the_config_is_mounted_and_cannot_be_written(job: Job, kind: str) -> None:
    config = Target("config", "/home/me/d.yaml", (), "/home/me")
    found = rendered(job(target=config, config_yaml="seed: 1\n"), kind=kind)
    [config_map] = of_kind(found, "ConfigMap")
    for part in (part for manifest in found for part in pod_templates(manifest)):
        assert {"name": "config", "configMap": {"name": config_map["metadata"]["name"]}} in part["spec"][
            "volumes"
        ]
        mounts = part["spec"]["containers"][0]["volumeMounts"]
        assert {"name": "config", "mountPath": "/etc/dist-train", "readOnly": True} in mounts
    assert "configMap" not in repr(rendered(job(), kind=kind)), "a script has none"


@every_kind
def test_further_options(job: Job, kind: str) -> None:
    spec = pod(
        job(),
        kind=kind,
        service_account="trainer",
        priority_class="high",
        image_pull_secret="registry",
        node_selector=("gpu=a100",),
        toleration=("team=red:NoSchedule",),
        run_as_user=1000,
        fs_group=2000,
    )
    assert spec["serviceAccountName"] == "trainer"
    assert spec["priorityClassName"] == "high"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"gpu": "a100"}
    assert spec["tolerations"][-1] == {
        "key": "team",
        "operator": "Equal",
        "value": "red",
        "effect": "NoSchedule",
    }
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 2000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@every_kind
def test_rdma_adds_what_restricted_forbids(job: Job, kind: str) -> None:
    spec = pod(job(), kind=kind, rdma=True)
    [security] = [part["securityContext"] for part in spec["containers"]]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert pod(job(), kind=kind, rdma=True, run_as_user=0)["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


PATCH = """
metadata: {annotations: {karpenter.sh/do-not-disrupt: null, mine: "1"}}
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  tolerations: [{operator: Exists}]
  containers:
  - name: node
    env: [{name: NCCL_DEBUG, value: WARN}, {name: USER, value: me}]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, nfs: {server: s, path: /p}}]
"""


@every_kind
def test_the_patch_comes_last_and_for_every_node(job: Job, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text(PATCH)
    found = rendered(job(nodes=2), kind=kind, pod_patch=str(path))
    parts = [part for manifest in found for part in pod_templates(manifest)]
    assert len(parts) == 1
    for part in parts:
        spec = part["spec"]
        assert spec["hostNetwork"] is True
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert {"name": "data", "nfs": {"server": "s", "path": "/p"}} in spec["volumes"]
        [agent] = spec["containers"]
        found = {item["name"]: item.get("value") for item in agent["env"]}
        assert (found["NCCL_DEBUG"], found["USER"], found["HOME"]) == ("WARN", "me", "/tmp")
        assert {"name": "data", "mountPath": "/data"} in agent["volumeMounts"]
        assert part["metadata"]["annotations"]["mine"] == "1"
        assert "karpenter.sh/do-not-disrupt" not in part["metadata"]["annotations"]


def test_a_patch_of_a_config_file_is_the_mapping_itself(job: Job) -> None:
    patch = {"spec": {"containers": [{"name": "node", "securityContext": {"readOnlyRootFilesystem": False}}]}}
    security = container(job(), pod_patch=patch)["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert options_with(pod_patch=patch).pod_patch == patch
