"""What keeps a container from starting, what it sees when it runs, and its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException
from warm_commands.warm_containers import may_fork_container

from cluster.harness.manifests import config_map, container, service
from cluster.harness.programs import IN_RUNS, RUNS, SLEEP, python, run, submit
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.nodes.image import Image
from cluster.objects import CONFIG_MAPS, JOBS, SERVICES, Manifest
from launchers._kubernetes.manifest.app import _HOME

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def core(cluster: KubernetesCluster) -> Iterator[client.CoreV1Api]:
    """The official client."""
    api = config.new_client_from_config(str(cluster.kubeconfig))
    yield client.CoreV1Api(api)
    api.close()


# Before they run.


def test_a_wrong_image_waits_with_its_reason(cluster: KubernetesCluster) -> None:
    cluster.break_image("example.org/train:1", "manifest for example.org/train:1 not found")
    submit(cluster, python(SLEEP), completions=1)
    cluster.wait_for(
        lambda: cluster.pods() != [] and cluster.pod(0).waiting == "ImagePullBackOff", "back-off"
    )
    assert cluster.pod(0).phase == "Pending"
    assert cluster.events("Failed") == [
        'Failed to pull image "example.org/train:1": manifest for example.org/train:1 not found'
    ]


@pytest.mark.parametrize(
    ("more", "words", "reason", "said"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}]},
            {},
            "CreateContainerConfigError",
            'secret "keys" not found',
        ),
        (
            {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}},
            {},
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
        ),
        (
            {"volumeMounts": [{"name": "c", "mountPath": "/c"}]},
            {"volumes": [{"name": "c", "configMap": {"name": "settings"}}]},
            "ContainerCreating",
            'MountVolume.SetUp failed for volume "c" : configmap "settings" not found',
        ),
    ],
)
def test_a_pod_waits_for_missing_objects(
    cluster: KubernetesCluster, more: Manifest, words: Manifest, reason: str, said: str
) -> None:
    submit(cluster, python(SLEEP, **more), completions=1, **words)
    wanted = {"reason": reason, "message": said}
    cluster.wait_for(
        lambda: cluster.pods() != [] and cluster.pod(0).state.get("waiting") == wanted, f"{reason}: {said}"
    )
    assert said in cluster.events()


def test_a_secret_that_comes_later_lets_the_pod_start(cluster: KubernetesCluster) -> None:
    reference = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}
    submit(cluster, python("import os; print(os.environ['A'])", env=[reference]), completions=1)
    cluster.wait_for(lambda: cluster.pods() != [] and cluster.pod(0).waiting != "", "it waits")
    cluster.secret("keys", a="canary")
    cluster.wait_job_result("Complete")
    assert cluster.logs(cluster.pod(0)) == "canary\n"


def test_a_missing_command_is_128(cluster: KubernetesCluster) -> None:
    submit(cluster, container("pyhton"), completions=1, policy=None, backoff_limit=0)
    cluster.wait_job_result("Failed: BackoffLimitExceeded")
    ended = cluster.pod(0).state["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert ended["message"] == 'exec: "pyhton": No such file or directory'


# What a container sees.


def test_variables_are_the_manifests_and_nothing_of_the_host(
    cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    cluster.store.create(CONFIG_MAPS, "default", config_map("settings", lr="0.1"))
    fields = {"NAME": "metadata.name", "UID": "metadata.uid", "NODE": "spec.nodeName", "IP": "status.podIP"}
    env: list[Manifest] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
    ]
    env.append({"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}})
    env.append({"name": "LR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "lr"}}})
    env.append({"name": "URL", "value": "tcp://$(NAME):29400/$$(LR)/$(NOT)"})
    code = """
        import os
        for name in sorted(os.environ.keys() - {"PATH", "LC_CTYPE"}):
            print(f"{name}={os.environ[name]}")
    """
    ended = run(cluster, code, more={"env": env})
    assert cluster.logs(ended).splitlines() == sorted(
        [
            "HOME=/",
            "HOSTNAME=train-0",
            "JOB_COMPLETION_INDEX=0",
            "KUBERNETES_SERVICE_HOST=10.96.0.1",
            "KUBERNETES_SERVICE_PORT=443",
            f"IP={ended.manifest['status']['podIP']}",
            "LABEL=train",
            "LR=0.1",
            f"NAME={ended.name}",
            f"NODE={ended.node}",
            f"UID={ended.uid}",
            f"URL=tcp://{ended.name}:29400/$(LR)/$(NOT)",
        ]
    )


def test_service_links_give_a_service_called_master_a_master_port(cluster: KubernetesCluster) -> None:
    made = {**service("master"), "spec": {"ports": [{"port": 80}]}}
    cluster.store.create(SERVICES, "default", made)
    code = "import os; print(os.environ.get('MASTER_PORT'))"
    assert cluster.logs(run(cluster, code)).startswith("tcp://10.96.0.")
    cluster.store.delete(JOBS, "default", "train")
    cluster.wait_for(lambda: cluster.objects(JOBS) == [], "the Job has gone")
    assert cluster.logs(run(cluster, code, pod={"enableServiceLinks": False})) == "None\n"


def test_volumes_are_mounted_at_their_paths(cluster: KubernetesCluster) -> None:
    cluster.store.create(CONFIG_MAPS, "default", config_map("settings", **{"config.yaml": "epochs: 1\n"}))
    volumes = [
        RUNS,
        {"name": "config", "configMap": {"name": "settings"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "100Mi"}},
    ]
    mounts = [
        {**IN_RUNS, "subPath": "team"},
        {"name": "config", "mountPath": "/etc/dist-train"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    code = """
        import os, pathlib, shutil
        config = pathlib.Path("/etc/dist-train/config.yaml")
        print(config.read_text().strip(), shutil.disk_usage("/dev/shm").total >> 20)
        for place in ("/runs", "/tmp", "/dev/shm", "/etc/dist-train", "/usr", "/"):
            try:
                pathlib.Path(place, "new").touch()
                print(place, "is writable")
            except OSError as error:
                print(place, os.strerror(error.errno))
    """
    context = {"readOnlyRootFilesystem": True, "runAsUser": 0}
    ended = run(cluster, code, volumes=volumes, more={"volumeMounts": mounts, "securityContext": context})
    assert cluster.logs(ended).splitlines() == [
        "epochs: 1 100",
        *(f"{place} is writable" for place in ("/runs", "/tmp", "/dev/shm")),
        *(f"{place} Read-only file system" for place in ("/etc/dist-train", "/usr", "/")),
    ]
    assert (cluster.volume / "team" / "new").exists()


def test_a_container_is_another_machine_and_not_root(cluster: KubernetesCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import dist_train, os; print('trains in', os.getcwd())")
    cluster.image.workspace = tmp_path
    code = f"""
        import os, pathlib, runpy, socket
        print(os.getuid(), os.getgid(), os.getgroups(), os.environ["HOME"])
        print(pathlib.Path({str(tmp_path)!r}).exists(), sorted(os.listdir("/sys/class/net")))
        print([name for name in os.listdir("/proc") if name.isdigit()])
        print(pathlib.Path("/proc/self/status").read_text().count("CapEff:\\t0000000000000000"))
        try:
            socket.getaddrinfo("nowhere.train", 1)
        except socket.gaierror as error:
            print(error.errno == socket.EAI_NONAME)
        runpy.run_path("train.py")
    """
    context = {"runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
    ended = run(
        cluster,
        code,
        more={"securityContext": context, "workingDir": "/workspace"},
        pod={"securityContext": {"fsGroup": 2000}},
    )
    assert cluster.logs(ended).splitlines() == [
        "1000 0 [2000] /",
        "False ['eth0', 'lo']",
        "['1']",
        "1",
        "True",
        "trains in /workspace",
    ]


def test_a_volume_of_another_user_takes_an_fs_group(cluster: KubernetesCluster) -> None:
    cluster.volume.chmod(0o755)
    code = "open('/runs/new', 'w')"
    words: Manifest = {"volumes": [RUNS], "more": {"volumeMounts": [IN_RUNS]}}
    assert "PermissionError" in cluster.logs(run(cluster, code, **words))
    cluster.store.delete(JOBS, "default", "train")
    cluster.wait_for(lambda: cluster.objects(JOBS) == [], "the Job has gone")
    words = {"volumes": [RUNS], "more": {"volumeMounts": [IN_RUNS]}}
    run(cluster, code, pod={"securityContext": {"fsGroup": 2000}}, **words)
    assert cluster.job_result() == "Complete"


def test_init_containers_come_first_and_in_order(cluster: KubernetesCluster) -> None:
    def step(name: str) -> Manifest:
        code = f"open('/runs/steps', 'a').write('{name} ')"
        return {**python(code, volumeMounts=[IN_RUNS]), "name": name}

    words = {"initContainers": [step("one"), step("two")]}
    submit(cluster, step("main"), completions=1, volumes=[RUNS], pod=words)
    cluster.wait_job_result("Complete")
    assert (cluster.volume / "steps").read_text() == "one two main "


# Logs by the API.


def test_a_log_is_followed_to_its_end_and_kept(cluster: KubernetesCluster, core: client.CoreV1Api) -> None:
    code = """
        import pathlib, time
        print("first", flush=True)
        while not pathlib.Path("/runs/go").exists():
            time.sleep(0.02)
        print("last", flush=True)
        raise SystemExit(3)
    """
    words: Manifest = {"completions": 1, "policy": None, "backoff_limit": 0, "volumes": [RUNS]}
    submit(cluster, python(code, volumeMounts=[IN_RUNS]), **words)
    cluster.wait_for(lambda: cluster.phases() == ["Running"], "it runs")
    name = cluster.pod(0).name
    lines = watch.Watch().stream(core.read_namespaced_pod_log, name, "default", follow=True)
    assert next(lines) == "first"
    (cluster.volume / "go").touch()
    assert next(lines) == "last"
    cluster.wait_job_result("Failed: BackoffLimitExceeded")

    def log(**words: int) -> bytes:
        # With _preload_content this client returns the text of a bytes literal.
        said = core.read_namespaced_pod_log(name, "default", _preload_content=False, **words)
        return bytes(said.data)

    assert log() == b"first\nlast\n"
    assert log(tail_lines=1) == b"last\n"
    assert log(limit_bytes=3) == b"fir"


def test_a_missing_log_has_a_reason(cluster: KubernetesCluster, core: client.CoreV1Api) -> None:
    cluster.break_image("example.org/train:1")
    submit(cluster, python(SLEEP), completions=1)
    cluster.wait_for(
        lambda: cluster.pods() != [] and cluster.pod(0).waiting == "ImagePullBackOff", "back-off"
    )
    name = cluster.pod(0).name
    with pytest.raises(ApiException, match="is waiting to start: ImagePullBackOff") as error:
        core.read_namespaced_pod_log(name, "default")
    assert error.value.status == 400
    cluster.forbid("get", "pods/log")
    with pytest.raises(ApiException, match=r'cannot get resource \\"pods/log\\"') as error:
        core.read_namespaced_pod_log(name, "default")
    assert error.value.status == 403


def test_agents_are_forked_where_a_new_interpreter_would_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    argv = ["python", "-P", "-m", "dist_train.agent", "--threads-per-rank", "1", "script", "train.py"]
    environ = {"PATH": Image().path, "HOSTNAME": "train-0", **_HOME}
    spec = {"argv": argv, "env": environ, "user": 1000}
    assert may_fork_container(spec)
    assert not may_fork_container({**spec, "user": 0}), "exec would give root other capabilities"
    assert not may_fork_container({**spec, "env": {**environ, "TORCH_LOGS": "all"}})
    assert not may_fork_container({**spec, "argv": ["sh", "-c", "python -P -m dist_train.agent"]})
    assert not may_fork_container({**spec, "argv": [*argv[:5], "2", *argv[6:]]}), "threads"
