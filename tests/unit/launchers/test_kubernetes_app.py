"""The TorchX app of a job, the pods' environment, and what is refused before anything is rendered."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes_plans import IMAGE, KINDS, container, environ, options_with
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from dist_train.jobs import Target
from launchers._kubernetes.manifest.app import app_of

HOSTILE = "a 'b' \"c\" $HOME $(HOME) $$ ${app_id} `date` \\ \t\n;é#"


def config_error(spec: object, **given: object) -> str:
    with pytest.raises(ConfigError) as caught:
        app_of(spec, options_with(**given))  # type: ignore[arg-type]
    return str(caught.value)


def test_the_app_has_the_jobs_fields(job: Job) -> None:
    spec = job(nodes=2, device="cuda", max_restarts=5, resources=(("mem", "64G"), ("cpus_per_gpu", "8")))
    app = app_of(spec, options_with(resource=("rdma/ib=1", "hugepages-2Mi=5Gi")))
    [role] = app.roles
    assert (app.name, role.name, role.image) == ("digits", "trainer", IMAGE)
    assert (role.num_replicas, role.min_replicas, role.max_retries) == (2, 2, 5)
    assert [role.entrypoint, *role.args][:4] == ["python", "-P", "-m", "dist_train.agent"]
    assert role.env["DIST_TRAIN_RUN_ID"] == "digits-1f"
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (16, 2, 65536)
    assert role.resource.devices == {"rdma/ib": 1}
    assert role.resource.capabilities["hugepages-2Mi"] == "5Gi"
    assert [(mount.src, mount.dst_path) for mount in role.mounts] == [("runs", "/runs")]
    assert role.port_map == {"rdzv": 29400}
    assert app.metadata["dist-train/run-id"] == "digits-1f"


def test_it_is_a_torchx_appdef(job: Job) -> None:
    from torchx.specs import AppDef, Role

    app = app_of(job(), options_with())
    assert isinstance(app, AppDef)
    assert isinstance(app.roles[0], Role)


@pytest.mark.parametrize(
    ("kind", "leader"),
    [
        ("job", "digits-0.digits"),
        ("jobset", "digits-node-0-0.digits"),
        ("trainjob", "digits-node-0-0.digits"),
        ("volcano", "digits-trainer-0.digits"),
    ],
)
def test_the_agents_environment(job: Job, kind: str, leader: str) -> None:
    spec = job(nodes=2, env=(("LEVEL", "3"),), interface="eth0", grace_s=90)
    found = environ(spec, kind=kind)
    ours = {name: value for name, value in found.items() if name.startswith("DIST_TRAIN_")}
    ours.pop("DIST_TRAIN_NODE_RANK", None)  # Volcano's pods: test_kubernetes_volcano.py
    assert ours == {
        "DIST_TRAIN_RUN_ID": "digits-1f",
        "DIST_TRAIN_RUN_DIR": "/runs/digits",
        "DIST_TRAIN_LAUNCHER": "kubernetes",
        "DIST_TRAIN_NNODES": "2",
        "DIST_TRAIN_NPROC_PER_NODE": "2",
        "DIST_TRAIN_RDZV": f"tcp://{leader}:29400",
        "DIST_TRAIN_INTERFACE": "eth0",
        "DIST_TRAIN_GRACE_S": "90",
        "DIST_TRAIN_MAX_RESTARTS": "3",
        "DIST_TRAIN_JOB": "digits.0",
    }
    assert found["LEVEL"] == "3"


def test_home_is_writable_for_every_user(job: Job) -> None:
    found = environ(job(env=(("HOME", "/runs/home"),)))
    assert found["HOME"] == "/runs/home", "what the user says wins"
    assert environ(job()) | {
        "HOME": "/tmp",
        "USER": "dist-train",
        "LOGNAME": "dist-train",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "TRITON_CACHE_DIR": "/tmp/triton",
        "XDG_CACHE_HOME": "/tmp/cache",
    } == environ(job())


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_and_values_are_escaped(job: Job, kind: str) -> None:
    target = Target("script", "/home/me/train.py", (HOSTILE, "", "1e-4"), "/home/me")
    spec = job(target=target, env=(("MOTTO", HOSTILE),))
    command = container(spec, kind=kind)["command"]
    assert [expanded(word) for word in command[-4:]] == ["/workspace/train.py", HOSTILE, "", "1e-4"]
    assert expanded(environ(spec, kind=kind)["MOTTO"]) == HOSTILE


def expanded(text: str) -> str:
    """As the kubelet does it, where every $(NAME) is known: what is not escaped shows.

    k8s.io/kubernetes/third_party/forked/golang/expansion
    """
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            out, at = out + "EXPANDED", text.index(")", at) + 1
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@pytest.mark.parametrize(
    ("target", "folder", "last"),
    [
        (
            Target("script", "/home/me/train.py", ("--x",), "/home/me"),
            "/code",
            ["script", "/code/train.py", "--x"],
        ),
        (
            Target("script", "/home/me/../me/a/train.py", (), "/home/me/a"),
            "/code/a",
            ["script", "/code/a/train.py"],
        ),
        (Target("module", "pkg.train", (), "/home/me"), "/code", ["module", "pkg.train"]),
        (
            Target("config", "/home/me/conf/d.yaml", (), "/home/me/conf"),
            "/code/conf",
            ["config", "/etc/dist-train/config.yaml"],
        ),
        (
            Target("config", "/elsewhere/d.yaml", (), "/elsewhere"),
            "/code",
            ["config", "/etc/dist-train/config.yaml"],
        ),
    ],
)
def test_paths_are_those_of_the_image(job: Job, target: Target, folder: str, last: list[str]) -> None:
    config = "a: 1\n" if target.kind == "config" else None
    found = container(job(target=target, config_yaml=config), workdir="/code")
    command = found["command"]
    assert found["workingDir"] == "/code"
    assert command[command.index("--folder") + 1] == folder
    assert command[-len(last) :] == last


def test_where_launch_was_called_is_kept_for_a_resume(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_with()
    monkeypatch.chdir(tmp_path)
    assert app_of(job(), options).roles[0].args[-3:] == ["/workspace/train.py", "--lr", "0.1"]


def test_a_script_from_elsewhere_is_not_in_the_image(job: Job) -> None:
    found = config_error(job(target=Target("script", "/home/you/train.py", (), "/home/you")))
    assert "the script /home/you/train.py is not in /home/me" in found
    assert "launch from the folder that the image holds" in found


def test_no_image(job: Job) -> None:
    assert "--image REGISTRY/NAME:TAG" in config_error(job(), image=None)


@pytest.mark.parametrize(
    ("volume", "why"), [(None, "none was given"), ("emptydir", "an emptyDir is each pod's own")]
)
def test_several_nodes_need_a_volume_that_they_share(job: Job, volume: str | None, why: str) -> None:
    found = config_error(job(nodes=2), run_volume=volume)
    assert f"2 nodes need a run volume that all of them can mount; {why}" in found
    assert "--run-volume pvc/NAME, a claim with ReadWriteMany" in found
    assert app_of(job(nodes=1), options_with(run_volume=volume)).roles[0].mounts == []


IN_A_BUCKET = "checkpoint: {directory: 's3://bucket/{run}'}\n"


def test_several_nodes_need_no_common_volume_where_checkpoints_are_at_a_url(job: Job) -> None:
    spec = job(nodes=2, target=Target("config", "train.yaml", (), "/home/me"), config_yaml=IN_A_BUCKET)
    found = config_error(spec, run_volume=None)
    assert "need a key for the run" in found
    assert "kubectl create secret generic dist-train-run-key" in found
    secret = container(replace(spec, secrets=("DIST_TRAIN_RUN_KEY",)), run_volume=None)["env"][-1]
    assert secret == {
        "name": "DIST_TRAIN_RUN_KEY",
        "valueFrom": {"secretKeyRef": {"name": "dist-train-run-key", "key": "DIST_TRAIN_RUN_KEY"}},
    }
    local = replace(spec, config_yaml="checkpoint: {directory: null}\n", secrets=("DIST_TRAIN_RUN_KEY",))
    assert "2 nodes need a run volume that all of them can mount" in config_error(local, run_volume=None)
    given = replace(spec, env=(("DIST_TRAIN_RUN_KEY", "word"),))
    assert "need a key for the run" in config_error(given, run_volume=None), (
        "what --env gives stands in the manifest"
    )


@pytest.mark.parametrize(
    ("kind", "name", "refused"),
    [
        ("job", "JOB_COMPLETION_INDEX", True),
        ("job", "DIST_TRAIN_RDZV", True),
        ("job", "DIST_TRAIN_INJECT", False),
        ("job", "MASTER_ADDR", True),
        ("job", "RANK", True),
        ("job", "TORCHX_JOB_ID", True),
        ("volcano", "VC_TASK_INDEX", True),
        ("job", "PET_NNODES", False),
        ("trainjob", "PET_NNODES", True),
        ("job", "RANKS", False),
    ],
)
def test_reserved_variables_are_refused(job: Job, kind: str, name: str, refused: bool) -> None:
    spec = job(env=((name, "1"),))
    if refused:
        assert f"the variable {name} cannot be given to" in config_error(spec, kind=kind)
        assert name in config_error(job(), kind=kind, secret_ref=(f"{name}=a/b",)), "nor as a secret"
    else:
        assert name in app_of(spec, options_with(kind=kind)).roles[0].env


def test_one_name_has_one_value(job: Job) -> None:
    spec = job(env=(("LOGIN", "me"),))
    assert "LOGIN is given as a variable and as a secret" in config_error(spec, secret_ref=("LOGIN=a/b",))


def test_root_is_refused_where_the_level_forbids_it(job: Job) -> None:
    assert "--rdma yes" in config_error(job(), run_as_user=0)
    assert app_of(job(), options_with(run_as_user=0, rdma=True)).name == "digits"


def test_time_limits_that_cannot_be_kept(job: Job) -> None:
    assert "(3600 s) cannot be kept by --kind volcano" in config_error(job(time_limit_s=3600), kind="volcano")
    assert "would end the job at once" in config_error(job(time_limit_s=0))


@pytest.mark.parametrize(
    ("nodes", "method", "refused"),
    [
        (2, "file:///tmp/x", True),
        (2, "file://tmp/x", True),
        (2, "file:///runs/digits/control/init", False),
        (2, "tcp://digits-0.digits:1234", False),
        (1, "file:///tmp/x", False),
    ],
)
def test_an_init_file_is_on_the_shared_volume(job: Job, nodes: int, method: str, refused: bool) -> None:
    spec = job(nodes=nodes, init_method=method)
    if refused:
        assert "file:///runs/digits/control/init" in config_error(spec)
    else:
        assert method in app_of(spec, options_with()).roles[0].args


def test_bytes_that_no_manifest_can_hold(job: Job) -> None:
    target = Target("script", "/home/me/train.py", ("--x=\udcff",), "/home/me")
    assert r"'--x=\udcff' is no valid UTF-8" in config_error(job(target=target))
    assert "is no valid UTF-8" in config_error(job(env=(("X", "\udcff"),)))


RENDER = """
import sys
sys.modules["kubernetes"] = None
from pathlib import Path
from dist_train.jobs import JobSpec, Target
from launchers._kubernetes.manifest.app import app_of
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.render import manifests, to_yaml
assert "torchx" not in sys.modules and "yaml" not in sys.modules
spec = JobSpec("digits", "digits-1", Path("/x"), Target("script", "/home/me/train.py"))
options = Options(image="x:1", kind=sys.argv[1], source="/home/me")
print(len(to_yaml(manifests(app_of(spec, options), spec, options))))
"""


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_rendering_needs_no_kubernetes_client(kind: str) -> None:
    done = rendering_without_client(kind)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def test_volcano_needs_the_kubernetes_client() -> None:
    done = rendering_without_client("volcano")
    assert "ConfigError: --kind volcano needs the kubernetes client" in done.stderr
    assert "pip install 'dist-train[kubernetes]'" in done.stderr


def rendering_without_client(kind: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", RENDER, kind],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
