"""`make test-cluster` itself, on the emulated cluster: it passes, leaves nothing, says what it lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.harness.job_kinds import remaining_objects
from cluster.kubernetes_cluster import KubernetesCluster

ROOT = Path(__file__).parents[2]
GIVEN = {"NAMESPACE": "default", "IMAGE": "registry.test/dist-train:1"}


def target(cluster: KubernetesCluster, **given: str) -> list[str]:
    """The command; the environment of these tests is the venv."""
    own = {"KUBECONFIG": str(cluster.kubeconfig), "BIN": str(Path(sys.executable).parent)}
    values = {**GIVEN, **own, **given}
    return ["make", "-o", "venv-dev", "test-cluster", *(f"{name}={text}" for name, text in values.items())]


def start(cluster: KubernetesCluster, out: Path, **given: str) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            target(cluster, **given), cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )


def refused(cluster: KubernetesCluster, **given: str) -> str:
    done = subprocess.run(target(cluster, **given), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    assert not [one for one in remaining_objects(cluster) if "persistentvolumes" not in one]
    return done.stderr


@pytest.mark.multiprocess
@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_whole_life_cycle_leaves_nothing(cluster: KubernetesCluster, tmp_path: Path) -> None:
    process = start(cluster, tmp_path / "out.txt")
    code = process.wait(timeout=540)
    said = (tmp_path / "out.txt").read_text()
    assert code == 0, said
    assert "5 passed" in said
    assert remaining_objects(cluster) == []
    assert list(cluster.volume.iterdir()) == []


@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.slow
def test_ctrl_c_leaves_nothing(cluster: KubernetesCluster, tmp_path: Path) -> None:
    process = start(cluster, tmp_path / "out.txt")
    cluster.wait_for(lambda: list(cluster.volume.glob("*/*/checkpoints/*")), "a checkpoint", within_s=60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=90) != 0
    said = (tmp_path / "out.txt").read_text()
    assert "removing all of it" in said, said
    assert "left behind" not in said, said
    assert remaining_objects(cluster) == []
    assert list(cluster.volume.iterdir()) == []


@pytest.mark.parametrize("name", ["KUBECONFIG", "NAMESPACE", "IMAGE"])
def test_what_was_not_given_is_named(control_plane: KubernetesCluster, name: str) -> None:
    assert f"[test-cluster] cannot run: not given: {name}=…" in refused(control_plane, **{name: ""})


def test_a_claim_that_does_not_exist(control_plane: KubernetesCluster) -> None:
    said = refused(control_plane, CLAIM="nope")
    assert "there is no PersistentVolumeClaim nope in namespace default" in said


def test_a_namespace_that_does_not_exist(control_plane: KubernetesCluster) -> None:
    assert "nope" in refused(control_plane, NAMESPACE="nope")


def test_a_right_that_is_missing(control_plane: KubernetesCluster) -> None:
    control_plane.forbid("delete", "pods")
    said = refused(control_plane)
    assert "no right to delete pods" in said
    assert "the tests also delete pods" in said
