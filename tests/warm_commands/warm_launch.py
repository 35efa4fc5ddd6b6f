"""Run commands as forks of one process, where that makes no difference but for the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from warm_commands.command_server import AGENT, THREADS
from warm_commands.forked_command import ForkedCommand, command_server, same_early_variables

from dist_train import testing
from dist_train.testing import CliResult
from dist_train.testing.command import StartedCommand, spawn_command

# 1: every command and agent is a new interpreter, as a user starts them. CI runs a sample of the tests so.
COLD = "DIST_TRAIN_TESTING_COLD"
# What the commands that start no rank on this machine import; none of them imports torch.
CLUSTERS = (
    "dist_train.cli.launch.submit_job",
    *(f"dist_train.cli.verbs.{verb}" for verb in ("cancel", "launch", "list", "logs", "resume", "status")),
    "dist_train.cli.live.display_mode",
    "launchers.kubernetes",
    "launchers.local",
    "launchers._kubernetes.runner.torchx_session",
    "launchers._kubernetes.runner.scheduler",
    "launchers._kubernetes.runner.pod_logs",
    "launchers._kubernetes.follow.job_follower",
    "launchers.slurm",
    "launchers._slurm.batch_script",
    "submitit",
    # What these import where they are used: a launch for Kubernetes had 0.3 s of CPU for it, of 0.5.
    "dist_train.config.launch_section",
    "kubernetes.client",
    "kubernetes_validate",
    "referencing.jsonschema",
    "torchx.runner",
    "yaml",
)


class BackgroundCommand(StartedCommand, Protocol):
    """What is needed of subprocess.Popen."""

    def send_signal(self, number: int) -> None:
        """Signal it if it runs."""


def launch_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
) -> CliResult:
    """Run `dist-train ARGS`, as dist_train.testing.launch_cli does."""
    return testing.launch_cli(args, cwd, env, timeout_s, _start)


def start_launch(args: Sequence[str], cwd: str | Path, out: IO[bytes]) -> BackgroundCommand:
    """Start `dist-train ARGS` in the background, with one file for its output; the caller ends it."""
    return _start(args, cwd, dict(os.environ), out, out)


def cluster_cli(
    args: Sequence[str],
    cwd: str | Path,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 60.0,
) -> CliResult:
    """Run a command for a job on a cluster, as dist_train.testing.launch_cli does."""
    return testing.launch_cli(args, cwd, env, timeout_s, _start_for_cluster)


def start_for_cluster(args: Sequence[str], cwd: str | Path, out: IO[bytes]) -> BackgroundCommand:
    """Start a command for a job on a cluster, with one file for its output; the caller ends it."""
    return _start_for_cluster(args, cwd, dict(os.environ), out, out)


def _start(
    args: Sequence[str], cwd: str | Path, environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> BackgroundCommand:
    if not _starts_ranks(args):
        return _start_for_cluster(args, cwd, environ, out, err)
    if not may_fork(environ):
        return spawn_command(args, cwd, environ, out, err)
    return command_server().command(args, str(cwd), environ, out.fileno(), err.fileno())


def _start_for_cluster(
    args: Sequence[str], cwd: str | Path, environ: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> BackgroundCommand:
    # The number of threads is read while torch is imported, which these commands do not do.
    if not may_fork({**environ, "OMP_NUM_THREADS": THREADS}):
        return spawn_command(args, cwd, environ, out, err)
    return command_server(CLUSTERS).command(args, str(cwd), environ, out.fileno(), err.fileno())


def start_module(
    words: Sequence[str], cwd: Path, environ: Mapping[str, str], out: IO[bytes]
) -> BackgroundCommand:
    """Start `python -X faulthandler -P -m WORDS`, with one file for its output; the caller ends it."""
    if not may_fork(environ):
        argv = [sys.executable, "-X", "faulthandler", "-P", "-m", *words]
        return subprocess.Popen(argv, cwd=cwd, env=environ, stdout=out, stderr=out)
    return command_server().start_module(words, str(cwd), environ, out.fileno(), out.fileno())


def start_agent(
    argv: Sequence[str],
    environ: Mapping[str, str],
    out: IO[bytes],
    folder: str | Path | None = None,
    namespaces: tuple[int, Sequence[str]] | None = None,
) -> ForkedCommand | None:
    """Start an agent; None where only a new interpreter can be what it is.

    Args:
        folder: its working directory; by default this process's.
        namespaces: a pid, and which of its namespaces the agent enters (names in /proc/PID/ns).
    """
    if not may_fork(environ) or list(argv[:4]) != [sys.executable, *AGENT]:
        return None
    request = {"agent": list(argv), "environ": dict(environ), "folder": str(folder or os.getcwd())}
    if namespaces is not None:
        request["namespaces"] = namespaces
    return command_server().fork(request, out.fileno(), out.fileno())


def may_fork(environ: Mapping[str, str]) -> bool:
    """Whether a fork of one of this process's servers may have this environment."""
    return sys.platform == "linux" and os.environ.get(COLD) != "1" and same_early_variables(environ)


def _starts_ranks(args: Sequence[str]) -> bool:
    return args[:1] in (["launch"], ["resume"]) and "--dry-run" not in args
