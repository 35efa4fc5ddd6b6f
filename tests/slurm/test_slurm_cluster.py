"""The clusters that the other tests of this folder use: they work, break on demand, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, fields
from slurm_config import ClusterSettings
from slurm_daemons import CLUSTER_MARK, ClusterError, PortBlock, until
from slurm_namespaces import NamespaceCluster

from dist_train.testing.process_tree import with_environ

SMALL = ClusterSettings(nodes=2)


def script(folder: Path, body: str, *options: str) -> Path:
    """A batch script that writes to `out`."""
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in (*options, f"--output={folder}/out"))]
    path = folder / "job.sh"
    path.write_text("\n".join([*lines, body, ""]))
    return path


def running(cluster: SlurmCluster, job_id: int, restarts: int = 0, within_s: float = 30) -> dict[str, str]:
    """Wait until the job runs, after so many restarts."""
    wanted = ("RUNNING", str(restarts))
    return cluster.wait_for(job_id, lambda job: (job["JobState"], job["Restarts"]) == wanted, within_s)


def wait_for_tasks(folder: Path, count: int) -> None:
    """Until so many tasks have printed `here`: a job is RUNNING before its tasks run."""
    out = folder / "out"
    until(lambda: out.exists() and out.read_text() == "here\n" * count, f"{count} tasks run", 20)


def assert_gone(cluster: SlurmCluster) -> None:
    assert not cluster.folder.exists()
    assert not with_environ({CLUSTER_MARK: str(cluster.folder)})
    assert not with_environ({"SLURM_CONF": cluster.environ["SLURM_CONF"]}, having="SLURMD_NODENAME")


def test_four_nodes_with_gpus_are_idle(slurm: SlurmCluster) -> None:
    assert slurm.node_states() == {f"127.0.0.{i}": "idle" for i in (11, 12, 13, 14)}
    assert all(slurm.node(name)["Gres"] == "gpu:4,nvme:2" for name in slurm.names)
    assert os.environ["SLURM_CONF"] == slurm.environ["SLURM_CONF"]
    assert slurm.start_s < 30  # some 4 s alone; other groups of tests start their processes at the same time


def test_a_job_runs_on_two_nodes_and_sees_gpus(slurm: SlurmCluster, tmp_path: Path) -> None:
    body = "srun bash -c 'echo $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES'; exit 41"
    path = script(tmp_path, body, "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2")
    job_id = slurm.sbatch(path)
    job = slurm.wait_for(job_id, ("FAILED", "COMPLETED"))
    assert sorted(tmp_path.joinpath("out").read_text().splitlines()) == [
        "127.0.0.11 0 0,1",
        "127.0.0.12 1 0,1",
    ]
    assert (job["JobState"], job["Reason"], job["ExitCode"]) == ("FAILED", "NonZeroExitCode", "41:0")
    assert slurm.batch_script(job_id) == path.read_bytes()


def test_a_requeued_job_runs_again_within_seconds(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.sbatch(script(tmp_path, "sleep 100"))
    running(slurm, job_id)
    slurm.run("scontrol", "requeue", str(job_id))
    running(slurm, job_id, restarts=1, within_s=20)


def test_a_node_that_goes_down_gives_its_job_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.sbatch(script(tmp_path, "srun sleep 100", "--nodes=2"))
    running(slurm, job_id)
    slurm.set_node("127.0.0.12", "DOWN", "a broken disk")
    slurm.wait_for(job_id, "PENDING")
    assert slurm.node("127.0.0.12")["Reason"].startswith("a broken disk")
    slurm.resume_node("127.0.0.12")
    assert slurm.node_states()["127.0.0.12"] == "idle"


def test_tasks_survive_their_slurmd(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.sbatch(script(tmp_path, "echo here; sleep 1.5; echo alive"))
    name = running(slurm, job_id)["NodeList"]
    wait_for_tasks(tmp_path, 1)
    slurm.kill_slurmd(name)
    assert {process.name() for process in slurm.processes_of(name)} >= {"slurmstepd", "slurm_script"}
    slurm.restart_slurmd(name)
    slurm.wait_for(job_id, "COMPLETED")
    assert tmp_path.joinpath("out").read_text() == "here\nalive\n"


def test_a_dead_node_has_no_process_and_is_back_when_clean(slurm: SlurmCluster, tmp_path: Path) -> None:
    # A session of its own, like a process that its parent has lost.
    job_id = slurm.sbatch(
        script(tmp_path, "srun bash -c 'setsid sleep 100 & echo here; sleep 100'", "--nodes=2")
    )
    wait_for_tasks(tmp_path, 2)
    slurm.kill_node("127.0.0.12")
    assert slurm.processes_of("127.0.0.12") == []
    assert slurm.processes_of("127.0.0.11")
    slurm.clean()
    assert set(slurm.node_states().values()) == {"idle"}
    assert slurm.job(job_id)["JobState"] in ("CANCELLED", "FAILED", "NODE_FAIL")


def test_high_preempts_main(slurm: SlurmCluster, tmp_path: Path) -> None:
    all_gpus = ("--nodes=4", "--gpus-per-node=4")
    preempted = slurm.sbatch(script(tmp_path, "sleep 100", *all_gpus))
    running(slurm, preempted)
    urgent = slurm.sbatch(script(tmp_path, "sleep 100", *all_gpus, "--partition=high"))
    running(slurm, urgent)
    assert slurm.job(preempted)["JobState"] == "PENDING"


def test_without_a_controller_commands_fail_in_time(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm.stop_controller()
    began = time.monotonic()
    done = slurm.run("sbatch", str(script(tmp_path, "true")), check=False)
    assert time.monotonic() - began < 20
    assert done.returncode == 1
    assert "Unable to contact slurm controller" in done.stderr
    slurm.start_controller()
    assert slurm.sbatch(script(tmp_path, "true")) > 0


def test_an_impossible_time_limit_waits_with_its_reason(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.sbatch(script(tmp_path, "true", "--partition=tiny", "--time=60"))
    slurm.wait_for(job_id, lambda job: job["Reason"] == "PartitionTimeLimit")


def test_sacct_knows_how_jobs_ended(slurm_accounting: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm_accounting.sbatch(script(tmp_path, "exit 41"))
    slurm_accounting.wait_for(job_id, "FAILED")
    words = ("sacct", "-j", str(job_id), "--parsable2", "-n", "-o", "JobID,State,ExitCode")

    def accounted() -> list[str]:
        return slurm_accounting.run(*words).stdout.splitlines()

    deadline = time.monotonic() + 15
    while f"{job_id}|FAILED|41:0" not in accounted():
        assert time.monotonic() < deadline, accounted()
        time.sleep(0.1)


def test_nodes_in_namespaces_are_hosts(slurm_namespaces: NamespaceCluster, tmp_path: Path) -> None:
    cluster, hidden = slurm_namespaces, tmp_path / "data"
    hidden.mkdir()
    (hidden / "file").touch()
    cluster.hide("n2", hidden)
    body = f"srun bash -c 'echo $(hostname) $(hostname -i) $(getent hosts n1 | wc -l) $(ls {hidden})'"
    job_id = cluster.sbatch(script(tmp_path, body, "--nodes=2", "--ntasks-per-node=1"))
    cluster.wait_for(job_id, "COMPLETED")
    lines = sorted(tmp_path.joinpath("out").read_text().splitlines())
    assert lines == ["n1 10.77.0.11 1 file", "n2 10.77.0.12 1"]
    cluster.clean()
    seen = subprocess.run([*cluster.node_prefix("n2"), "ls", str(hidden)], capture_output=True, timeout=10)
    assert seen.stdout == b"file\n"


def test_commands_inside_keep_their_folder(slurm_namespaces: NamespaceCluster) -> None:
    assert slurm_namespaces.run("pwd").stdout == f"{Path.cwd()}\n"
    assert slurm_namespaces.run("getent", "hosts", "n4").stdout.split() == ["10.77.0.14", "n4"]


def test_a_node_in_a_namespace_dies_and_is_made_again(
    slurm_namespaces: NamespaceCluster, tmp_path: Path
) -> None:
    job_id = slurm_namespaces.sbatch(script(tmp_path, "srun sleep 100", "--nodes=2"))
    running(slurm_namespaces, job_id)
    slurm_namespaces.kill_node("n2")
    assert slurm_namespaces.processes_of("n2") == []
    slurm_namespaces.restart_slurmd("n2")
    assert slurm_namespaces.processes_of("n2")
    # The others had spoken to the old one a moment ago.
    slurm_namespaces.clean()
    again = slurm_namespaces.sbatch(script(tmp_path, "srun hostname", "--nodes=2"))
    slurm_namespaces.wait_for(again, "COMPLETED")
    assert sorted(tmp_path.joinpath("out").read_text().split()) == ["n1", "n2"]


@pytest.mark.parametrize("kind", [SlurmCluster, NamespaceCluster])
def test_nothing_is_left_after_the_end(
    kind: type[SlurmCluster], slurm_session: SlurmCluster, tmp_path: Path
) -> None:
    before = network()
    with kind(SMALL) as cluster:
        running(cluster, cluster.sbatch(script(tmp_path, "srun sleep 100", "--nodes=2")))
        ports = {node.port for node in cluster.layout.nodes}
        assert ports.isdisjoint(node.port for node in slurm_session.layout.nodes)
        assert cluster.names[0] in cluster.run("sinfo", "-N").stdout
    assert_gone(cluster)
    assert network() == before


@pytest.mark.parametrize("kind", [SlurmCluster, NamespaceCluster])
def test_nothing_is_left_when_the_start_fails(kind: type[SlurmCluster], slurm_session: SlurmCluster) -> None:
    before = network()
    # No slurmctld takes that: munged runs by then.
    cluster = kind(ClusterSettings(nodes=2, cpus_per_node=-1))
    with pytest.raises(ClusterError, match=r"did not start: slurmctld -i: exit code 1"):
        cluster.start()
    assert_gone(cluster)
    assert network() == before


def test_two_clusters_have_different_ports() -> None:
    blocks = [PortBlock.reserve(6) for _ in range(20)]
    taken = [port for block in blocks for port in range(block.first, block.first + 6)]
    for block in blocks:
        block.release()
    assert len(set(taken)) == len(taken)


def test_slurm_dev_prints_its_usage_and_ends_with_ctrl_c(slurm_session: SlurmCluster) -> None:
    path = Path(__file__).with_name("slurm_dev.py")
    with subprocess.Popen(
        [sys.executable, "-u", str(path), "--nodes", "2"], stdout=subprocess.PIPE, text=True
    ) as dev:
        assert dev.stdout is not None
        lines = []
        for line in dev.stdout:
            lines.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    text = "\n".join(lines)
    conf = next(line.partition("SLURM_CONF=")[2] for line in lines if "SLURM_CONF=" in line)
    assert "idle 127.0.0.[11-12]" in text
    assert "--partition=high --nodes=2" in text
    assert not Path(conf).exists()
    assert not with_environ({CLUSTER_MARK: str(Path(conf).parent.parent)})


def test_records_are_read_with_their_blanks() -> None:
    line = (
        "JobId=7 Command=/a b/c.sh x=1 Power= CPUs/Task=1 AllocNode:Sid=vm:1 TresPerNode=gres:gpu:2\nJobId=8"
    )
    assert fields(line) == {
        "JobId": "7",
        "Command": "/a b/c.sh x=1",
        "Power": "",
        "CPUs/Task": "1",
        "AllocNode:Sid": "vm:1",
        "TresPerNode": "gres:gpu:2",
    }


def network() -> str:
    """The host's own interfaces, routes and mounts."""
    said = [
        subprocess.run(["ip", word], capture_output=True, text=True, timeout=10).stdout
        for word in ("link", "route")
    ]
    return "".join([*said, Path("/proc/self/mounts").read_text(encoding="utf-8")])
