"""A Slurm cluster as its users have it: a partition, an account, a shared folder, and Slurm's commands.

`make test-slurm-site` sets the variables for a real one; without them it is the cluster that the tests start.
Nothing here looks at processes or daemons: those are on other machines.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_train.jobs.launcher import JobState
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.events import read_events
from dist_train.rundir.result import read_result
from dist_train.testing import CliResult, launch_cli

FOLDER = "DIST_TRAIN_SITE_FOLDER"
PARTITION = "DIST_TRAIN_SITE_PARTITION"
ACCOUNT = "DIST_TRAIN_SITE_ACCOUNT"
ARGUMENTS = "DIST_TRAIN_SITE_ARGS"
QUEUE_S = "DIST_TRAIN_SITE_QUEUE_S"
SLOW = Path(__file__).parent / "workloads" / "slow.yaml"
SHAPE = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "1", "--time", "15")
# 0.2 s a step: a rank has 32 samples of a batch, loaded by two workers.
SLOWLY = ("--env", "SLOW_S=0.0125")
_ENDED = ("done", "failed", "stopped")


@dataclass(frozen=True)
class Site:
    """Where jobs go.

    Args:
        folder: shared by all nodes; every run is in it, and it is removed at the end.
        arguments: further options of `launch`.
        queue_s: how long a job may wait for its nodes.
    """

    folder: Path
    partition: str
    account: str = ""
    arguments: tuple[str, ...] = ()
    queue_s: float = 60.0

    @classmethod
    def of_environ(cls, environ: Mapping[str, str]) -> Site | None:
        """The site that `make test-slurm-site` names; None without."""
        if FOLDER not in environ:
            return None
        words = tuple(shlex.split(environ.get(ARGUMENTS, "")))
        queue_s = float(environ.get(QUEUE_S, "1800"))
        return cls(Path(environ[FOLDER]), environ[PARTITION], environ.get(ACCOUNT, ""), words, queue_s)

    @property
    def _options(self) -> list[str]:
        account = ["-A", self.account] if self.account else []
        return [*SHAPE, "-p", self.partition, *account, *self.arguments]

    def launch(self, name: str, *args: object, detach: bool = False) -> CliResult:
        """`dist-train launch` to the job's end, or to its submission."""
        words = ["launch", "--launcher", "slurm", "--name", f"{self.folder.name}-{name}", *self._options]
        if detach:
            words.append("--detach")
        limit_s = 120.0 if detach else self.queue_s + 300
        return launch_cli([*words, *map(str, args)], cwd=self.folder, timeout_s=limit_s)

    def submit(self, name: str, *args: object) -> SiteRun:
        """`dist-train launch --detach`."""
        done = self.launch(name, *args, detach=True)
        assert done.code == 0, done
        return self.run(name)

    def run(self, name: str) -> SiteRun:
        """A run of this site."""
        return SiteRun(self, f"{self.folder.name}-{name}")


@dataclass(frozen=True)
class SiteRun:
    """One run, looked at through the run directory and dist-train's own verbs."""

    site: Site
    name: str

    @property
    def directory(self) -> RunDir:
        return RunDir(self.site.folder / "runs" / self.name)

    @property
    def job_id(self) -> str:
        handle: str = json.loads(self.directory.job.read_text())["handle"]
        return handle.removeprefix("slurm:").partition("@")[0]

    @property
    def hashes(self) -> tuple[str, str, str]:
        result = read_result(self.directory)
        assert result is not None, self.console()
        return result.weights_hash, result.state_hash, result.metrics_hash

    def console(self) -> str:
        """Output of the job."""
        return "\n".join(path.read_text() for path in sorted(self.directory.logs.glob("*_log.out")))

    def resume_steps(self) -> list[int | None]:
        """The step from which each attempt started."""
        return [event["resume_step"] for event in read_events(self.directory, "attempt_started")]

    def verb(self, *words: str) -> CliResult:
        """A verb of dist-train on this run."""
        return launch_cli([words[0], self.name, *words[1:]], cwd=self.site.folder, timeout_s=180)

    def state(self) -> JobState:
        """What Slurm and the run's records say, as `status` has it."""
        from dist_train.jobs import JobHandle
        from launchers.slurm import SlurmLauncher

        return SlurmLauncher().state(JobHandle(f"slurm:{self.job_id}"), str(self.directory.path))

    def wait_for(self, ready: Callable[[], bool], what: str, within_s: float) -> None:
        """Poll until `ready`, as long as the job may wait in the queue and `within_s` more."""
        deadline = time.monotonic() + self.site.queue_s + within_s
        while not ready():
            assert time.monotonic() < deadline, f"{what}\n{self.state()}\n{self.console()}"
            time.sleep(0.5)

    def wait_for_step(self, step: int) -> None:
        """Wait until a checkpoint of this step or a later one is committed."""
        self.wait_for(lambda: (newest_step(self.directory) or 0) >= step or self.ended(), f"step {step}", 180)
        assert (newest_step(self.directory) or 0) >= step, self.console()

    def ended(self) -> bool:
        """Whether the job is over."""
        return self.state().phase in _ENDED

    def wait_end(self) -> JobState:
        """Wait until Slurm has the job's end."""
        self.wait_for(self.ended, "the job's end", 300)
        return self.state()


def scancel(*words: str) -> None:
    """Slurm's own command."""
    subprocess.run(["scancel", *words], check=True, timeout=60)


def jobs_of(prefix: str) -> dict[str, str]:
    """Job id -> name of this user's jobs in the queue whose names begin with the prefix."""
    argv = ["squeue", "-h", "-u", str(os.getuid()), "-o", "%A %j"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    found = (re.match(r"(\d+) (.*)", line) for line in done.stdout.splitlines())
    return {one[1]: one[2] for one in found if one is not None and one[2].startswith(prefix)}
