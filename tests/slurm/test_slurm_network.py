"""Nodes that are hosts of their own, in network namespaces: a cut cable, an unshared folder, interfaces."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from slurm_namespaces import NamespaceCluster
from slurm_runs import LAUNCH, SLOW, TWO_BY_ONE, Hashes, SlurmRun

from dist_train.agent import timeouts
from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
PRINT_RANK = "import os\nprint('rank', os.environ['RANK'], os.environ.get('GLOO_SOCKET_IFNAME'))\n"


def launch_inside(
    cluster: NamespaceCluster, folder: Path, name: str, *words: object, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """`dist-train launch` on the controller's host."""
    return subprocess.run(
        [*cluster.prefix, *LAUNCH, "--name", name, *map(str, words)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.proves(
    "A cut network cable is noticed within a minute, its node named and replaced by another; the same bits",
    limits="nodes in network namespaces",
)
@pytest.mark.proof
def test_a_node_behind_a_cut_cable_is_named_and_replaced(
    slurm_namespaces: NamespaceCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    words = ("--detach", *TWO_BY_ONE, "--env", "SLOW_S=0.03", SLOW)
    said = launch_inside(slurm_namespaces, tmp_path, "cable", *words)
    assert said.returncode == 0, said
    run = SlurmRun(slurm_namespaces, RunDir(tmp_path / "runs" / "cable"))
    run.wait_for_step(10)
    second = run.events("attempt_started")[0]["nodes"][1]["machine"]
    slurm_namespaces.disconnect(second)
    cut_at = time.monotonic()
    run.wait_for(lambda: bool(run.events("first_failure")), "the loss", timeouts.HOST_DEATH_S)
    (failed,) = run.events("first_failure")
    assert f"node 1 ({second}) is gone: no heartbeat" in failed["message"]
    run.wait_for(lambda: not agents_of_node_0(run), "the end of the attempt", timeouts.HOST_DEATH_S)
    assert time.monotonic() - cut_at < timeouts.HOST_DEATH_S
    run.wait_done(within_s=150)
    assert run.job["Restarts"] == "1"
    assert second not in run.events("attempt_started")[1]["hosts"]
    assert (run.resume_steps()[1] or 0) >= 10
    assert run.hashes == undisturbed_pair


def agents_of_node_0(run: SlurmRun) -> bool:
    return run.run.lease.exists() and len(run.events("attempt_started")) == 1


@pytest.mark.proves(
    "A run directory that a node does not see: 78, the node named",
    limits="nodes in network namespaces",
)
def test_a_run_directory_that_a_node_does_not_see_is_78_and_names_the_node(
    slurm_namespaces: NamespaceCluster, tmp_path: Path
) -> None:
    script = tmp_path / "print_rank.py"
    script.write_text(PRINT_RANK)
    (tmp_path / "runs").mkdir()
    for name in slurm_namespaces.names[1:]:
        slurm_namespaces.hide(name, tmp_path / "runs")
    blind = launch_inside(slurm_namespaces, tmp_path, "blind", *TWO_BY_ONE, script)
    assert blind.returncode == 78, blind
    assert "is not shared by" in blind.stdout + blind.stderr
    assert "n2" in blind.stdout + blind.stderr
    run = SlurmRun(slurm_namespaces, RunDir(tmp_path / "runs" / "blind"))
    assert run.job["ExitCode"] == "78:0"
    assert run.job["Restarts"] == "0"
    slurm_namespaces.hide(slurm_namespaces.names[0], tmp_path / "runs")
    nowhere = launch_inside(slurm_namespaces, tmp_path, "nowhere", *TWO_BY_ONE, script)
    assert nowhere.returncode == 78, nowhere
    assert "is not shared by n1" in nowhere.stderr, nowhere.stderr


@pytest.mark.proof
def test_an_interface_is_taken_by_name_or_network(slurm_namespaces: NamespaceCluster, tmp_path: Path) -> None:
    script = tmp_path / "print_rank.py"
    script.write_text(PRINT_RANK)
    shape = (*TWO_BY_ONE, "--show-ranks", "all")
    found = launch_inside(slurm_namespaces, tmp_path, "net", *shape, "--interface", "10.77.0.0/24", script)
    assert found.returncode == 0, found
    assert "rank 0 eth" in found.stdout or "rank 0 n1" in found.stdout, found
    log = (tmp_path / "runs" / "net" / "logs" / "node-0.log").read_text()
    assert "the other nodes connect to 10.77.0.11" in log
    wrong = launch_inside(slurm_namespaces, tmp_path, "wrong", *shape, "--interface", "ib9", script)
    assert wrong.returncode == 78, wrong
    assert "has no such network interface" in wrong.stdout
