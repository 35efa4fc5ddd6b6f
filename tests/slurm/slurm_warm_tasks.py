"""Agents in Slurm's tasks as forks of a process that has imported torch.

See warm_commands/task/sitecustomize.py. With COLD_TASKS in its environment a task is what
its job says.
"""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

from slurm_cluster import SlurmCluster
from warm_commands import slurm_task
from warm_commands.forked_command import command_server
from warm_commands.warm_launch import COLD

# The commands of the test may be forks; with 1 they are not either (warm_launch.COLD).
COLD_TASKS = {COLD: "tasks"}


class WarmCluster(SlurmCluster):
    """A cluster whose settings have warm_tasks."""

    def start(self) -> None:
        """Start every daemon, while the server imports."""
        threading.Thread(target=command_server, daemon=True, name="waits for the command server").start()
        super().start()

    def _start_daemons(self) -> None:
        super()._start_daemons()
        write_prolog(self.layout.task_prolog)


def write_prolog(prolog: Path) -> None:
    """Write what makes the agents of a cluster's tasks forks, in a new folder; waits for the server."""
    own = prolog.parent
    own.mkdir()
    program = Path(slurm_task.__file__).resolve().with_name("task") / "sitecustomize.py"
    own.joinpath("sitecustomize.py").symlink_to(program)
    own.joinpath("server").write_text(command_server().address, encoding="utf-8")
    path = f"{shlex.quote(str(own))}${{PYTHONPATH:+:$PYTHONPATH}}"
    prolog.write_text(f"#!/bin/sh\necho export PYTHONPATH={path}\n", encoding="utf-8")
    prolog.chmod(0o755)
