"""The rendered pod template as real containers, by podman and runc on one network: the local run's bits."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.harness.runs import SLOW, SLOWLY, TWO_BY_ONE, TWO_BY_TWO, Run, launch, local, wait_for
from cluster.nodes.image import Image
from cluster.podman import name_server
from cluster.podman.engine import BINARIES, Engine
from cluster.podman.image import USER
from cluster.podman.manifest_fields import UnsupportedField
from cluster.podman.placement import Placement
from cluster.podman.pods import Manifests, PodmanPod, PodmanPods, ProcessFacts
from cluster.podman.run_flags import run_args
from dist_train.rundir import RunDir
from dist_train.testing.plugin import require

IMAGE = "registry.test/dist-train:1"
SHORT = ("trainer.steps=30",)
GROUP = ("--fs-group", "2000")
SLOW_FILES = (SLOW, SLOW.with_suffix(".py"))


@pytest.fixture
def engine() -> Iterator[Engine]:
    """podman in separate namespaces."""
    missing = [name for name in BINARIES if shutil.which(name) is None]
    if missing:
        require("k8s", f"not installed: {' '.join(missing)} (.ci/debian-packages.txt)")
    if os.geteuid() != 0:
        require("k8s", "containers on a network of their own need root")
    with tempfile.TemporaryDirectory(prefix="pm-") as folder:
        made = Engine(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def pods(engine: Engine, tmp_path: Path) -> PodmanPods:
    """A machine with the image, in which /workspace is code/."""
    code = tmp_path / "code"
    code.mkdir()
    for file in SLOW_FILES:
        shutil.copy(file, code)
    made = PodmanPods(engine, tmp_path)
    made.image(IMAGE, Image(workspace=code))
    return made


def rendered(folder: Path, name: str, *words: str, config: tuple[str, ...] = ()) -> Manifests:
    """The output of `dist-train launch --dry-run`."""
    dry_run = launch(folder, name, "--dry-run", "--kind", "job", *words, "slow.yaml", *config)
    assert dry_run.code == 0, dry_run
    return Manifests.parse(dry_run.stdout)


def on_volume(pods: PodmanPods, name: str) -> Run:
    """The files that the pods write."""
    return Run(RunDir(pods.volume / name))


def traces() -> dict[str, list[str]]:
    """What containers could leave on this machine; other tests run at the same time."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "podman" in line]
    wheres = ("/var/lib/c*", "/run/c*", "/run/libpod*", "/run/netns*", "/dev/shm/libpod*", "/sys/class/net/*")
    files = [str(path) for where in wheres for path in Path("/").glob(where.lstrip("/"))]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/*{os.getpid()}")]
    groups += [str(path) for path in Path("/sys/fs/cgroup").glob("*/*libpod*")]
    forks = forks_of_commands()
    found = psutil.Process().children(recursive=True)
    processes = [process.name() for process in found if process not in forks]
    return {"mounts": mounts, "files": files, "groups": groups, "processes": processes}


def forks_of_commands() -> list[psutil.Process]:
    """The processes that fork this session's commands, and what they have forked."""
    servers = [one for one in psutil.Process().children() if "dist-train test commands" in one.cmdline()[:1]]
    return [process for server in servers for process in [server, *server.children(recursive=True)]]


def check_process(facts: ProcessFacts) -> None:
    """The restricted level, as the kernel sees it; fsGroup 2000; a quarter of --mem 2Gi for /dev/shm."""
    assert facts.pid == 1
    assert f"{facts.user[0]}:{facts.user[1]}" == USER
    assert facts.groups == {0, 2000}
    assert (facts.capabilities, facts.gains_nothing) == (0, True)
    assert "ro" in facts.mount("/")[1]
    kind, options = facts.mount("/dev/shm")
    assert (kind, "size=524288k" in options) == ("tmpfs", True)


def wait_for_title(pod: PodmanPod, title: str) -> None:
    """The agent is the first process, without a shell."""
    wait_for(lambda: pod.title == title, title, within_s=30)


def messages(*pods: PodmanPod) -> list[dict[str, Any]]:
    """Termination messages."""
    return [json.loads(pod.message()) for pod in pods]


@pytest.mark.proves(
    "The rendered pods as real containers (podman, runc): restricted, non-root, PID 1, DNS; the same "
    "bits, and 75 in both when one is stopped",
    limits="kind job, one machine",
)
@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_both_pods_train_to_the_local_runs_bits(pods: PodmanPods, tmp_path: Path) -> None:
    manifests = rendered(tmp_path, "digits", *TWO_BY_TWO, *GROUP, config=SHORT)
    second = pods.start(manifests, 1)
    first = pods.start(manifests, 0)
    for index, pod in enumerate((first, second)):
        check_process(pod.facts())
        assert pod.execute("hostname") == f"digits-{index}\n"
        found = pod.execute("getent", "hosts", "digits-0.digits").split()
        assert found == [first.place.address, "digits-0.digits.default.svc.cluster.local"]
        wait_for_title(pod, f"dist-train agent node={index} run=/runs/digits")
    assert [pod.wait() for pod in (first, second)] == [0, 0], first.log() + second.log()
    assert [(one["node"], one["code"]) for one in messages(first, second)] == [(0, 0), (1, 0)]
    base = local(tmp_path / "local", "base", *TWO_BY_TWO, SLOW, *SHORT)
    assert on_volume(pods, "digits").hashes == base.hashes


@pytest.mark.proves(
    "The rendered pods as real containers (podman, runc): restricted, non-root, PID 1, DNS; the same "
    "bits, and 75 in both when one is stopped",
    limits="kind job, one machine",
)
@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_a_stopped_container_saves_both_exit_with_75_and_new_ones_continue(
    pods: PodmanPods, tmp_path: Path
) -> None:
    manifests = rendered(tmp_path, "stopped", *TWO_BY_ONE, *SLOWLY, *GROUP)
    both = [pods.start(manifests, index) for index in (0, 1)]
    run = on_volume(pods, "stopped")
    run.wait_for_step(10)
    began = time.monotonic()
    both[0].stop()
    assert [pod.wait(within_s=20) for pod in both] == [75, 75], both[0].log() + both[1].log()
    assert time.monotonic() - began < both[0].grace_s, "nobody was killed"
    (preempted,) = run.events("preempted")
    step = preempted["step"]
    assert step >= 10
    assert [(one["node"], one["code"], one["step"]) for one in messages(*both)] == [
        (0, 75, step),
        (1, 75, step),
    ]
    again = [pods.start(manifests, index) for index in (0, 1)]
    assert [pod.wait() for pod in again] == [0, 0], again[0].log() + again[1].log()
    assert run.resume_steps() == [None, step]
    base = local(tmp_path / "local", "base", *TWO_BY_ONE, SLOW)
    assert run.hashes == base.hashes


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_volume_that_the_images_user_may_not_write_is_found_at_once(
    pods: PodmanPods, tmp_path: Path
) -> None:
    one = pods.start(rendered(tmp_path, "denied", "--device", "cpu", "--gpus-per-node", "1"), 0)
    assert one.wait(within_s=30) == 78
    (message,) = messages(one)
    assert message["code"] == 78
    assert "--fs-group" in one.log(), one.log()


@pytest.mark.multiprocess
def test_an_image_with_an_older_agent_ends_the_job_at_once(pods: PodmanPods, tmp_path: Path) -> None:
    manifests = rendered(tmp_path, "older", *TWO_BY_ONE)
    (container,) = manifests.job["spec"]["template"]["spec"]["containers"]
    container["command"].insert(4, "--of-a-newer-dist-train")
    one = pods.start(manifests, 0)
    rules = manifests.job["spec"]["podFailurePolicy"]["rules"]
    (fatal,) = (rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob")
    assert fatal["operator"] == "NotIn"
    assert one.wait(within_s=30) not in fatal["values"]
    (message,) = messages(one)
    assert message["code"] == 2
    assert "--of-a-newer-dist-train" in message["why"]


@pytest.mark.multiprocess
def test_a_stopped_engine_leaves_nothing(engine: Engine, pods: PodmanPods, tmp_path: Path) -> None:
    there = traces()
    assert "bash" in there["processes"]
    pods.start(rendered(tmp_path, "gone", *TWO_BY_ONE, *GROUP), 1)
    during = traces()
    assert {"conmon", "python"} <= set(during["processes"]), "it waits for node 0"
    assert during["groups"] != there["groups"]
    engine.stop()
    assert traces() == {**there, "processes": []}


# What follows needs no podman.


def place(tmp_path: Path) -> Placement:
    """The flags of a pod that is not created."""
    return Placement(tmp_path / "pod", {"runs": tmp_path / "runs"}, "pods", "10.244.0.2", "10.244.0.1")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """The pod of a run with every option that applies here."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "code").mkdir()
    for file in SLOW_FILES:
        shutil.copy(file, folder / "code")
    words = ("--shm", "256Mi", "--fs-group", "2000", "--run-as-user", "1234", "--env", "PRICE=$(HOME)")
    return rendered(folder, "flags", *TWO_BY_ONE, *words)


def test_the_flags_match_the_template(template: Manifests, tmp_path: Path) -> None:
    pod = template.pod(1)
    words = run_args(pod, place(tmp_path))
    (entrypoint,) = (word for word in words if word.startswith("--entrypoint="))
    argv = json.loads(entrypoint.partition("=")[2])
    assert argv[:4] == ["python", "-P", "-m", "dist_train.agent"]
    assert words[-1] == IMAGE
    assert {
        f"--name={pod['metadata']['name']}",
        "--restart=no",
        "--hostname=flags-1",
        "--stop-timeout=60",
        "--network=pods",
        "--ip=10.244.0.2",
        "--dns=10.244.0.1",
        "--dns-search=default.svc.cluster.local",
        "--user=1234",
        "--group-add=2000",
        "--workdir=/workspace",
        "--env=JOB_COMPLETION_INDEX=1",
        f"--env=DIST_TRAIN_POD_UID={pod['metadata']['uid']}",
        "--env=PRICE=$(HOME)",
        "--cpus=1",
        "--memory=2147483648b",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--read-only-tmpfs=false",
        f"--volume={tmp_path}/pod/termination-log:/dev/termination-log",
        f"--volume={tmp_path}/runs:/runs",
        f"--volume={tmp_path}/pod/volumes/tmp:/tmp",
        f"--volume={tmp_path}/pod/volumes/config:/etc/dist-train:ro",
        "--mount=type=tmpfs,destination=/dev/shm,tmpfs-size=268435456,tmpfs-mode=1777",
    } <= set(words)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.hostIPC", True, "spec: hostIPC"),
        ("spec.restartPolicy", "OnFailure", "spec.restartPolicy: 'OnFailure'"),
        ("spec.securityContext.sysctls", [], "spec.securityContext: sysctls"),
        ("spec.securityContext.seccompProfile.type", "Unconfined", "seccompProfile.type: 'Unconfined'"),
        ("spec.volumes.0.nfs", {"path": "/"}, "spec.volumes[0]: nfs"),
        ("spec.volumes.0.persistentVolumeClaim.readOnly", True, "persistentVolumeClaim: readOnly"),
        ("spec.containers.0.livenessProbe", {}, "spec.containers[0]: livenessProbe"),
        ("spec.containers.0.securityContext.procMount", "Unmasked", "securityContext: procMount"),
        ("spec.containers.0.resources.limits.nvidia", 1, "resources.limits: nvidia"),
        ("spec.containers.0.volumeMounts.0.subPath", "a", "volumeMounts[0]: subPath"),
        ("spec.containers.0.env.0.valueFrom", {"secretKeyRef": {"name": "a"}}, "valueFrom: secretKeyRef"),
        ("metadata.clusterName", "a", "metadata: clusterName"),
    ],
)
def test_a_field_that_is_not_translated_is_refused(
    template: Manifests, tmp_path: Path, path: str, value: object, said: str
) -> None:
    pod = template.pod(0)
    at: Any = pod
    *folders, name = path.split(".")
    for folder in folders:
        at = at[int(folder)] if folder.isdigit() else at[folder]
    at[name] = value
    with pytest.raises(UnsupportedField) as error:
        run_args(pod, place(tmp_path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind", "rcode", "address"),
    [
        ("a-0.a.svc", 1, 0, "10.0.0.7"),
        ("A-0.a.SVC", 1, 0, "10.0.0.7"),
        ("a-0.a.svc", 28, 0, ""),
        ("b", 1, 3, ""),
    ],
    ids=["found", "any case", "no IPv6", "not there"],
)
def test_the_name_server_answers(name: str, kind: int, rcode: int, address: str) -> None:
    asked = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    asked += struct.pack("!2H", kind, 1)
    said = name_server.answer(struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + asked, {"a-0.a.svc": "10.0.0.7"})
    identity, flags, questions, answers, *_ = struct.unpack_from("!6H", said)
    assert (identity, flags & 0xF, questions, answers) == (7, rcode, 1, bool(address))
    assert said[12:].startswith(asked)
    assert said[12 + len(asked) :][12:] == (socket.inet_aton(address) if address else b"")
