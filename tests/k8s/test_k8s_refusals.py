"""Errors are printed within seconds, with a hint and the right exit code; nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_ONE, following, launch, verb, workspace
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import CONFIG_MAPS, JOBS, SERVICES

SCRIPT = "print('hello')\n"


@pytest.fixture
def code(control_plane: KubernetesCluster, tmp_path: Path) -> Path:
    """A folder with a script to launch."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / "hello.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.proves(
    "Wrong namespace, context, claim, access mode, rights, operator, server away: a hint, and nothing "
    "is left",
)
@pytest.mark.parametrize(
    ("break_it", "words", "code_", "said"),
    [
        (lambda c: None, ("--namespace", "nowhere"), 78, "nowhere"),
        (lambda c: None, ("--context", "prod"), 78, "prod"),
        (lambda c: None, ("--run-volume", "pvc/none"), 78, "none"),
        (lambda c: c.claim("once", ["ReadWriteOnce"]), ("--run-volume", "pvc/once"), 78, "ReadWriteOnce"),
        (lambda c: c.forbid("create", "jobs"), (), 69, "create jobs"),
        (lambda c: None, ("--kind", "jobset"), 69, "JobSet"),
        (lambda c: c.down(), (), 69, "cannot be reached"),
    ],
    ids=["namespace", "context", "claim", "access mode", "forbidden", "no JobSet", "unreachable"],
)
def test_a_refused_launch_prints_the_reason_and_leaves_nothing(
    control_plane: KubernetesCluster,
    code: Path,
    break_it: Callable[[KubernetesCluster], object],
    words: tuple[str, ...],
    code_: int,
    said: str,
) -> None:
    break_it(control_plane)
    done = launch(code, "refused", *TWO_BY_ONE, *words, "hello.py", timeout_s=30)
    assert done.code == code_, done
    assert said in done.stderr
    assert "hint:" in done.stderr
    assert not any(control_plane.objects(kind) for kind in (JOBS, SERVICES, CONFIG_MAPS))
    assert not (code / "code" / "runs" / "refused").exists()


def test_without_a_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hello.py").write_text(SCRIPT)
    nowhere = {"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    done = launch(tmp_path, "bare", *TWO_BY_ONE, "hello.py", env=nowhere, timeout_s=30)
    assert done.code == 78, done
    assert "kubeconfig" in done.stderr
    dry_run = launch(tmp_path, "bare", "--dry-run", *TWO_BY_ONE, "hello.py", env=nowhere, timeout_s=30)
    assert dry_run.code == 0, dry_run
    assert "kind: Job" in dry_run.stdout


def test_a_name_in_use_is_refused_with_its_owner(control_plane: KubernetesCluster, code: Path) -> None:
    first = launch(code, "mine", "--detach", "--run-id", "first-1", *TWO_BY_ONE, "hello.py")
    assert first.code == 0, first
    other = launch(code, "mine", "--run-dir", "elsewhere", *TWO_BY_ONE, "hello.py", timeout_s=30)
    assert other.code == 78, other
    assert "first-1" in other.stderr


@pytest.mark.proves(
    "A job that cannot start says why within seconds: image, scheduler, quota",
)
@pytest.mark.multiprocess
@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["image", "unschedulable", "quota"])
def test_a_job_that_cannot_start_is_reported_within_seconds(
    cluster: KubernetesCluster, tmp_path: Path, what: str
) -> None:
    workspace(cluster, tmp_path)
    (tmp_path / "code" / "hello.py").write_text(SCRIPT)
    if what == "image":
        cluster.break_image("registry.test/dist-train:1")
    elif what == "quota":
        cluster.refuse_pods("exceeded quota: team, requested: pods=1, used: pods=10, limited: pods=10")
    else:
        cluster.hold_pods("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    words = {
        "image": "manifest unknown",
        "quota": "exceeded quota: team",
        "unschedulable": "2 Insufficient nvidia.com/gpu",
    }
    with following(tmp_path, "held", *TWO_BY_ONE, "hello.py"):
        out = tmp_path / "out.txt"
        cluster.wait_for(lambda: words[what] in out.read_text(), "the reason", within_s=20)
        said = verb(tmp_path, "status", "held")
        assert words[what] in said.stdout, said
        assert "failed" not in said.stdout.splitlines()[1]
