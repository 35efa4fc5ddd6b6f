"""A task of the tests' cluster that is a fork is to Slurm and to itself what a new interpreter is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from slurm_cluster import SlurmCluster
from slurm_daemons import until
from slurm_warm_tasks import COLD_TASKS

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]
# What a task is given, and how it ends: by a code, or by a signal.
FACTS = """
import json, os, pathlib, resource, signal, sys, time
parent = pathlib.Path(f"/proc/{os.getppid()}/comm").read_text().strip()
own = ("SLURM_", "SRUN_", "LEAK_CHECK", "PYTEST", "DIST_TRAIN_TESTING", "PYTHONPATH")
facts = dict(
    argv=sys.argv, name=__name__, file=__file__, path=sys.path, folder=os.getcwd(),
    cpus=sorted(os.sched_getaffinity(0)),
    nice=os.getpriority(os.PRIO_PROCESS, 0), files=resource.getrlimit(resource.RLIMIT_NOFILE),
    core=resource.getrlimit(resource.RLIMIT_CORE), umask=os.umask(0), groups=os.getgroups(),
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    interrupt=signal.getsignal(signal.SIGINT).__name__,
    environ={name: value for name, value in os.environ.items() if not name.startswith(own) and name != "_"},
    node=os.environ["SLURMD_NODENAME"], task=os.environ["SLURM_PROCID"],
    python_path=os.environ.get("PYTHONPATH"), open=sorted(map(int, os.listdir("/proc/self/fd")))[:3],
)
pathlib.Path("facts.json").write_text(json.dumps([parent, facts]))
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
time.sleep(0.3)  # Slurm may lose what a killed task has written last
number = int(sys.argv[1])
sys.exit(number) if number >= 0 else os.kill(os.getpid(), -number)
"""
# A task and a child of its own say that a signal has come to them.
LISTENS = """
import os, pathlib, signal, time
child = os.fork() == 0
def came(number, frame):
    pathlib.Path(f"came-{child}").touch()
signal.signal(signal.SIGUSR1, came)
pathlib.Path(f"up-{child}").touch()
time.sleep(100)
time.sleep(100)
"""


@pytest.mark.parametrize("number", [41, -signal.SIGKILL])
def test_a_forked_task_is_given_and_says_what_a_new_interpreter_does(
    slurm: SlurmCluster, tmp_path: Path, number: int
) -> None:
    (tmp_path / "facts.py").write_text(FACTS)

    def run(more: Mapping[str, str]) -> tuple[str, dict[str, Any], int, bytes, bool]:
        argv = [
            "bash",
            "-c",
            'umask 27; ulimit -c 0; exec "$@"',
            "bash",
            "srun",
            "-n1",
            "-w",
            slurm.names[0],
            "--mpi=none",
        ]
        argv += ["nice", "-n", "3", "taskset", "-c", "0", sys.executable, "facts.py"]
        done = subprocess.run(
            [*argv, str(number)], cwd=tmp_path, env={**os.environ, **more}, capture_output=True, timeout=60
        )
        parent, facts = json.loads((tmp_path / "facts.json").read_text())
        return parent, facts, done.returncode, done.stdout, b"to stderr" in done.stderr

    (warm_parent, *warm), (cold_parent, *cold) = run({}), run(COLD_TASKS)
    assert warm == cold
    assert cold_parent == "slurmstepd"
    assert warm_parent != "slurmstepd", "the test did not test a fork"


def test_signals_reach_all_processes_of_a_forked_task_and_a_kill_ends_them(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "listens.py").write_text(LISTENS)
    job = tmp_path / "job.sh"
    job.write_text(
        f"#!/bin/bash\n#SBATCH -N1 -n1 --output=/dev/null\ncd {tmp_path}\n"
        f"srun --mpi=none {sys.executable} listens.py\n"
    )
    number = slurm.sbatch(job)
    wait_for_both(tmp_path, "up")
    slurm.run("scancel", "--signal=USR1", f"{number}.0")
    wait_for_both(tmp_path, "came")
    slurm.run("scancel", "--signal=KILL", f"{number}.0")
    ended = slurm.wait_for(number, ("FAILED", "COMPLETED"), within_s=30)
    assert ended["ExitCode"] == "137:0"
    until(lambda: not running_in(tmp_path), "both processes have ended", 10)


def running_in(folder: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


def wait_for_both(folder: Path, what: str) -> None:
    until(lambda: len(list(folder.glob(f"{what}-*"))) == 2, what, 30)
