"""Start runs on the test cluster by the command line, and read their run directories."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from slurm_cluster import SlurmCluster
from warm_commands.warm_launch import BackgroundCommand, cluster_cli, launch_cli, start_for_cluster

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.events import read_events
from dist_train.rundir.result import read_result
from dist_train.testing import CliResult

WORKLOADS = Path(__file__).parent / "workloads"
SLOW = WORKLOADS / "slow.yaml"
# 0.1 s a step with four ranks, 0.2 s with two: a rank has 16 or 32 samples, loaded by two workers.
SLOWLY = ("--env", "SLOW_S=0.0125")
WORDS = ("launch", "--launcher", "slurm")
LAUNCH = (sys.executable, "-P", "-m", "dist_train.cli.main", *WORDS)
Hashes = tuple[str, str, str]
TWO_BY_TWO = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "2")
# For tests of nodes, agents and signals alone; torch is imported half as often.
TWO_BY_ONE = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "1")


@dataclass(frozen=True)
class SlurmRun:
    """A run directory and its job on the cluster."""

    cluster: SlurmCluster
    run: RunDir

    @property
    def job_id(self) -> int:
        return int(json.loads(self.run.job.read_text())["handle"].removeprefix("slurm:"))

    @property
    def job(self) -> dict[str, str]:
        """scontrol show job."""
        return self.cluster.job(self.job_id)

    @property
    def hashes(self) -> tuple[str, str, str]:
        result = read_result(self.run)
        assert result is not None, f"{self.run.path} has no result: {self.console()}"
        return result.weights_hash, result.state_hash, result.metrics_hash

    def events(self, kind: str) -> list[dict[str, Any]]:
        return list(read_events(self.run, kind))  # type: ignore[arg-type]

    def console(self) -> str:
        """Output of the tasks."""
        return "\n".join(path.read_text() for path in sorted(self.run.logs.glob("*_log.out")))

    def resume_steps(self) -> list[int | None]:
        """The step from which each attempt started."""
        return [event["resume_step"] for event in self.events("attempt_started")]

    def wait_for_step(self, step: int, within_s: float = 90) -> None:
        """Wait until a checkpoint of this step or a later one is committed."""
        self.wait_for(lambda: (newest_step(self.run) or 0) >= step, f"a checkpoint of step {step}", within_s)

    def wait_for(self, ready: Callable[[], bool], what: str, within_s: float = 60) -> None:
        """Poll until `ready`; fails after the limit with `what` and the console."""
        deadline = time.monotonic() + within_s
        while not ready():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.console()}"
            time.sleep(0.05)

    def wait_done(self, within_s: float = 90) -> None:
        """Wait until the job has ended; fails unless it is COMPLETED."""
        job = self.cluster.wait_for(self.job_id, lambda job: job["JobState"] in _ENDED, within_s=within_s)
        assert job["JobState"] == "COMPLETED", f"{job}\n{self.console()}"


_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


def launch(
    folder: Path,
    name: str,
    *args: object,
    launcher: str = "slurm",
    timeout_s: float = 110,
    env: Mapping[str, str | None] | None = None,
) -> CliResult:
    """Run `dist-train launch` to its end."""
    argv = ["launch", "--launcher", launcher, "--name", name, *map(str, args)]
    start = cluster_cli if launcher == "slurm" else launch_cli
    return start(argv, cwd=folder, env=env, timeout_s=timeout_s)


def submit(cluster: SlurmCluster, folder: Path, name: str, *args: object) -> SlurmRun:
    """`dist-train launch --detach`; returns the run."""
    done = launch(folder, name, "--detach", *args, timeout_s=60)
    assert done.code == 0, done
    found = SlurmRun(cluster, RunDir(folder / "runs" / name))
    assert done.stdout == f"{found.job_id}\n", "the job id alone"
    return found


@contextmanager
def following(folder: Path, name: str, *args: object) -> Iterator[BackgroundCommand]:
    """`dist-train launch` in the background, with its output in out.txt."""
    with (folder / "out.txt").open("wb") as out:
        command = start_for_cluster([*WORDS, "--name", name, *map(str, args)], folder, out)
    try:
        yield command
    finally:
        command.kill()
        command.wait()


def agents(run: RunDir) -> dict[int, int]:
    """Node rank -> pid of the run's living agents on this machine, by their process titles."""
    return _by_title(f"dist-train agent node=(node) run={run.path}")


def ranks(run: RunDir) -> dict[int, int]:
    """Rank -> pid of the run's living ranks on this machine."""
    return _by_title(f"dist-train rank=(node) run={run.path}")


def _by_title(pattern: str) -> dict[int, int]:
    head, tail = pattern.split("(node)")
    found: dict[int, int] = {}
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or []).strip()
        if title.startswith(head) and title.endswith(tail):
            number = int(title.removeprefix(head).removesuffix(tail))
            # A rank's loader workers are forks with its title; the rank has the lowest pid.
            found[number] = min(process.pid, found.get(number, process.pid))
    return found


def kill(pid: int) -> None:
    """SIGKILL one process."""
    os.kill(pid, signal.SIGKILL)
