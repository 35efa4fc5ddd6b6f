"""Start runs on the test cluster by the command line, and read their run directories."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm_commands.warm_launch import BackgroundCommand, cluster_cli, launch_cli, start_for_cluster

from cluster.kubernetes_cluster import KubernetesCluster
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.events import read_events
from dist_train.rundir.result import read_result
from dist_train.testing import CliResult

_TESTS = Path(__file__).resolve().parents[3]
# The config of Slurm's tests: digits with dropout, two loader workers, slow in the first attempt.
SLOW = _TESTS / "slurm" / "workloads" / "slow.yaml"
LEDGER = _TESTS / "k8s" / "workloads" / "ledger.py"
SLOW_TO_SAVE = _TESTS / "k8s" / "workloads" / "slow_to_save.py"
# 0.2 s a step with two ranks.
SLOWLY = ("--env", "SLOW_S=0.0125")
PODS = ("--image", "registry.test/dist-train:1", "--mem", "2Gi")
VOLUME = ("--run-volume", "pvc/runs")
Hashes = tuple[str, str, str]
TWO_BY_TWO = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "2")
TWO_BY_ONE = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "1")


@dataclass(frozen=True)
class Run:
    """A run directory on the cluster's volume (or here, for a local run)."""

    run: RunDir

    @property
    def hashes(self) -> Hashes:
        result = read_result(self.run)
        assert result is not None, f"{self.run.path} has no result"
        return result.weights_hash, result.state_hash, result.metrics_hash

    def events(self, kind: str) -> list[dict[str, Any]]:
        return list(read_events(self.run, kind))  # type: ignore[arg-type]

    def resume_steps(self) -> list[int | None]:
        """The step from which each attempt started."""
        return [event["resume_step"] for event in self.events("attempt_started")]

    def wait_for_step(self, step: int, within_s: float = 60) -> None:
        """Wait until a checkpoint of this step or a later one is committed."""
        wait_for(lambda: (newest_step(self.run) or 0) >= step, f"a checkpoint of step {step}", within_s)


def wait_for(ready: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Poll until `ready`; fails after the limit."""
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)


def on_volume(cluster: KubernetesCluster, name: str) -> Run:
    """Run directory that the pods write."""
    return Run(RunDir(cluster.volume / name))


def workspace(cluster: KubernetesCluster, folder: Path, *files: Path) -> None:
    """Copy files to the folder where launch runs, and make it the image's /workspace."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, code)
    cluster.image.workspace = code


def launch(folder: Path, name: str, *args: object, timeout_s: float = 100, **more: Any) -> CliResult:
    """`dist-train launch --launcher kubernetes` in the folder's code/, to its end."""
    volume = () if "--run-volume" in args else VOLUME
    argv = ["launch", "--launcher", "kubernetes", "--name", name, *PODS, *volume, *map(str, args)]
    return cluster_cli(argv, cwd=folder / "code", timeout_s=timeout_s, **more)


def verb(folder: Path, *args: str) -> CliResult:
    """Run another command in the same folder."""
    return cluster_cli(list(args), cwd=folder / "code", timeout_s=60)


def submit(cluster: KubernetesCluster, folder: Path, name: str, *args: object) -> Run:
    """`launch --detach`; returns the run."""
    done = launch(folder, name, "--detach", *args)
    assert (done.code, done.stdout) == (0, f"{name}\n"), done
    return on_volume(cluster, name)


@contextmanager
def following(folder: Path, name: str, *args: object) -> Iterator[BackgroundCommand]:
    """`dist-train launch` in the background, with its output in out.txt."""
    argv = ["launch", "--launcher", "kubernetes", "--name", name, *PODS, *VOLUME, *map(str, args)]
    with (folder / "out.txt").open("wb") as out:
        command = start_for_cluster(argv, folder / "code", out)
    try:
        yield command
    finally:
        command.kill()
        command.wait()


def local(folder: Path, name: str, *args: object) -> Run:
    """Run the same job by the local launcher, without faults."""
    folder.mkdir(parents=True, exist_ok=True)
    done = launch_cli(["launch", "--name", name, *map(str, args)], cwd=folder, timeout_s=100)
    assert done.code == 0, done
    return Run(RunDir(folder / "runs" / name))


def ledger(run: Run) -> list[tuple[int, int, list[int]]]:
    """(attempt, step, sample ids) of every step of every rank, from the ranks' files."""
    found = []
    for file in sorted(run.run.path.glob("ledger-rank-*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            found.append((record["attempt"], record["step"], record["ids"]))
    return found
