"""Runs on the test cluster, started by the command line as a user would start them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k8s_cluster import KubernetesCluster

from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.progress import newest_step
from dist_train.rundir.result import read_result
from dist_train.testing import CliResult, launch_cli

# The config that Slurm's tests use: digits with dropout, two loader workers, slow in the first attempt.
SLOW = Path(__file__).parent.parent / "slurm" / "workloads" / "slow.yaml"
LEDGER = Path(__file__).parent / "workloads" / "ledger.py"
SLOW_TO_SAVE = Path(__file__).parent / "workloads" / "slow_to_save.py"
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
        """Until a checkpoint of this step or a later one is committed."""
        wait_for(lambda: (newest_step(self.run) or 0) >= step, f"a checkpoint of step {step}", within_s)


def wait_for(ready: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)


def on_volume(cluster: KubernetesCluster, name: str) -> Run:
    """What the pods write."""
    return Run(RunDir(cluster.volume / name))


def workspace(cluster: KubernetesCluster, folder: Path, *files: Path) -> None:
    """The image's /workspace, and the folder where launch runs: the same files."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, code)
    cluster.image.workspace = code


def launch(folder: Path, name: str, *words: object, timeout_s: float = 100, **more: Any) -> CliResult:
    """`dist-train launch --launcher kubernetes` in the folder's code/, to its end."""
    volume = () if "--run-volume" in words else VOLUME
    argv = ["launch", "--launcher", "kubernetes", "--name", name, *PODS, *volume, *map(str, words)]
    return launch_cli(argv, cwd=folder / "code", timeout_s=timeout_s, **more)


def verb(folder: Path, *words: str) -> CliResult:
    """Another command in the same folder."""
    return launch_cli(list(words), cwd=folder / "code", timeout_s=60)


def submit(cluster: KubernetesCluster, folder: Path, name: str, *words: object) -> Run:
    """`launch --detach`: the job goes on by itself."""
    said = launch(folder, name, "--detach", *words)
    assert (said.code, said.stdout) == (0, f"{name}\n"), said
    return on_volume(cluster, name)


@contextmanager
def following(folder: Path, name: str, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """`dist-train launch` in the background, its output in out.txt."""
    argv = [sys.executable, "-P", "-m", "dist_train.cli.main", "launch", "--launcher", "kubernetes"]
    with (folder / "out.txt").open("wb") as out:
        command = subprocess.Popen(
            [*argv, "--name", name, *PODS, *VOLUME, *map(str, words)],
            cwd=folder / "code",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield command
    finally:
        command.kill()
        command.wait()


def local(folder: Path, name: str, *words: object) -> Run:
    """The same job by the local launcher, undisturbed."""
    folder.mkdir(parents=True, exist_ok=True)
    done = launch_cli(["launch", "--name", name, *map(str, words)], cwd=folder, timeout_s=100)
    assert done.code == 0, done
    return Run(RunDir(folder / "runs" / name))


def ledger(run: Run) -> list[tuple[int, int, list[int]]]:
    """(attempt, step, ids) of every step that any rank trained, from the ranks' own files."""
    found = []
    for file in sorted(run.run.path.glob("ledger-rank-*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            found.append((record["attempt"], record["step"], record["ids"]))
    return found
